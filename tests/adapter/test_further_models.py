"""The file with further models: each has the settings that are a model's own, and the rest from the server's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.config import Config, ConfigError
from adapter.configuring import further_models
from adapter.serving import load_models
from tests.support.assets import tokenizer_dir

SMALL = """
[small]
triton = ["10.0.0.7:8001", "10.0.0.8:8001"]
tokenizer = "/models/small"
model_alias = ["tiny"]
max_context_tokens = 4096
"""


def written(folder: Path, text: str, **settings: object) -> Config:
    (folder / "models.toml").write_text(text, encoding="utf-8")
    return Config(models=folder / "models.toml", **settings)  # type: ignore[arg-type]


def test_without_a_file_there_are_none() -> None:
    assert further_models(Config()) == ()


def test_what_is_a_models_own_is_not_taken_from_the_server(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        SMALL,
        engine_model="scripted",
        engine_setting=("script=/s",),
        lora=("sql=/l",),
        tool_parser="hermes",
        keepalive_s=3.0,
        max_tokens=77,
    )
    (small,) = further_models(config)
    assert (small.served_model_name, small.model_alias) == ("small", ("tiny",))
    assert (small.triton, small.tokenizer) == (("10.0.0.7:8001", "10.0.0.8:8001"), Path("/models/small"))
    assert (small.max_context_tokens, small.tool_parser, small.lora) == (4096, "auto", ())
    assert (small.engine_model, small.engine_setting) == ("transformers", ())
    assert (small.keepalive_s, small.max_tokens) == (3.0, 77)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[small]\ntokenizer = 'x'", r"\[small\] of .*models.toml needs triton \(or triton_file\) and tokenizer"),
        ("[small]\ntriton = ['h:1']", "needs triton"),
        (
            "[small]\ntriton = ['h:1']\ntokenizer = 'x'\nport = 3",
            "'port' in .* is no setting of a model; those are triton,",
        ),
        ("[small]\nmax_context_tokens = 'many'", "max_context_tokens = 'many' in .* is not a valid int"),
        (
            "[small]\ntriton = ['h:1']\ntokenizer = 'x'\nmax_context_tokens = 1",
            r"\[small\] of .*models.toml: max_context_tokens is 1; it must lie in",
        ),
        ("small = 3", "'small' in .* is no table"),
        ("[small", "cannot read the configuration file"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        further_models(written(tmp_path, text))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lora": ("sql", "sql")}, "two served models are called 'sql'; see served_model_name"),
        ({"lora": ("rollserve",)}, "two served models are called 'rollserve'"),
        ({"model_alias": ("small",)}, "two served models are called 'small'"),
        ({"lora": ("",)}, "a name in .* is empty"),
        ({"lora": ("=/l",)}, "a name in .* is empty"),
        ({"served_model_name": ""}, "a name in .* is empty"),
        ({"lora": ("sql=/l",)}, "lora 'sql=/l': a running Triton loads its adapters itself; give the name"),
    ],
)
def test_names_are_checked_before_anything_starts(tmp_path: Path, settings: dict[str, object], reason: str) -> None:
    config = written(tmp_path, SMALL, triton=("127.0.0.1:1",), tokenizer=tmp_path, **settings)
    with pytest.raises(ConfigError, match=reason):
        load_models(config, print)


def test_addresses_are_checked_before_anything_starts(tmp_path: Path) -> None:
    config = written(tmp_path, SMALL.replace("10.0.0.7:8001", "nowhere"), triton=("127.0.0.1:1",), tokenizer=tmp_path)
    with pytest.raises(ConfigError, match=r"small.*models.toml: triton has 'nowhere', which is not HOST:PORT"):
        load_models(config, print)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*: 'utf-8' codec"):
        further_models(Config(models=tmp_path / "models.toml"))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        further_models(Config(models=tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("triton = ['gpu']", "triton has 'gpu', which is not HOST:PORT"),
        ("triton = ['h:1']\nlora = ['x=/l']", "lora 'x=/l': a running Triton loads its adapters itself"),
        ("triton = ['h:1']\ntool_parser = 'none such'", "none such"),
        ("triton = ['h:1']\nchat_template = '/none/such'", "/none/such"),
    ],
)
def test_a_mistake_that_is_found_later_is_told_with_its_place_too(tmp_path: Path, line: str, reason: str) -> None:
    folder = tokenizer_dir("qwen2_5")
    config = written(tmp_path, f"[small]\n{line}\ntokenizer = '{folder}'", triton=("h:2",), tokenizer=folder)
    with pytest.raises(ConfigError, match=rf"^\[small\] of .*models.toml: .*{reason}"):
        load_models(config, print)
