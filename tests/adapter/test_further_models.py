"""The file with further models: each has the settings that are a model's own, and the rest from the server's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.config import Config, ConfigError
from adapter.configuring import further_models

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
            "max_context_tokens is 1; it must lie in",
        ),
        ("small = 3", "'small' in .* is no table"),
        ("[small", "cannot read the configuration file"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        further_models(written(tmp_path, text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        further_models(Config(models=tmp_path / "none.toml"))
