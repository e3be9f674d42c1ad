"""Rendering a model repository: the contract as config.pbtxt, and no parameter that nobody reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engine.contract import INPUTS, OUTPUTS, contract_document
from engine.errors import RepositoryError
from engine.repository import COMMON, MODELS, available_models, effective_parameters, render_repository

LIMITS = {"max_seq_len": "100", "vocab_size": "50"}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of models with one in it."""
    folder = tmp_path / "models" / "toy"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("import sibling\n")
    (folder / "sibling.py").write_text("VALUE = 1\n")
    (folder / "parameters.json").write_text(json.dumps({"speed": "3", "script": None}))
    return folder.parent


def config_of(target: Path) -> Any:
    text = (target / "tensorrt_llm" / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def checkpoint(folder: Path, config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_files(models: Path, tmp_path: Path) -> None:
    target = render_repository("toy", tmp_path / "target", {**LIMITS, "script": "s"}, models=models)
    version = target / "tensorrt_llm" / "1"
    assert (version / "model.py").read_text() == "import sibling\n"
    assert (version / "sibling.py").read_text() == "VALUE = 1\n"
    assert json.loads((version / "contract.json").read_text()) == contract_document()
    assert {path.name for path in (version / "common").glob("*.py")} == {path.name for path in COMMON.glob("*.py")}
    assert not list(version.rglob("__pycache__"))


def test_the_configuration_is_the_table(models: Path, tmp_path: Path) -> None:
    config = config_of(render_repository("toy", tmp_path / "target", {**LIMITS, "script": "s"}, models=models))
    data_type = model_config_pb2.DataType.Name

    def rows(tensors: Any) -> list[tuple[str, str, tuple[int, ...]]]:
        dtypes = [data_type(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES") for tensor in tensors]
        return [(tensor.name, dtype, tuple(tensor.dims)) for tensor, dtype in zip(tensors, dtypes, strict=True)]

    assert rows(config.input) == [(spec.name, spec.dtype, spec.dims) for spec in INPUTS]
    assert rows(config.output) == [(spec.name, spec.dtype, spec.dims) for spec in OUTPUTS]
    assert [tensor.optional for tensor in config.input] == [spec.optional for spec in INPUTS]
    assert (config.name, config.backend, config.max_batch_size) == ("tensorrt_llm", "python", 1)
    assert config.model_transaction_policy.decoupled
    assert not config.HasField("dynamic_batching")


def test_parameters_are_the_given_over_the_declared_over_the_common(models: Path, tmp_path: Path) -> None:
    given = {**LIMITS, "script": 'a "quoted"\n\\ é', "coalesce_ms": "0"}
    config = config_of(render_repository("toy", tmp_path / "target", given, models=models))
    assert {name: value.string_value for name, value in config.parameters.items()} == {
        **given,
        "speed": "3",
        "log_probs_streaming": "delta",
        "log_prob_mode": "raw",
        "weight_version": "0",
        "guided_decoding": "none",
        "loras": "",
        "coalesce_per_live_ms": "1",
        "coalesce_max_ms": "100",
        "engine_log": "",
    }


def test_an_unknown_parameter_is_refused_by_name(models: Path) -> None:
    with pytest.raises(RepositoryError, match=r"no parameter sped; it has .*speed"):
        effective_parameters(models / "toy", {**LIMITS, "script": "s", "sped": "4"})


def test_a_parameter_without_default_must_be_given(models: Path) -> None:
    with pytest.raises(RepositoryError, match="needs a value for max_seq_len, script, vocab_size"):
        effective_parameters(models / "toy", {})


def test_an_unknown_model_is_refused_with_the_known_ones(models: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"no model 'tory'; there are toy in"):
        render_repository("tory", tmp_path / "target", {}, models=models)


@pytest.mark.parametrize("declared", ['{"speed": 3}', "[]", "{"])
def test_a_wrong_declaration_is_refused_with_its_file(models: Path, declared: str) -> None:
    (models / "toy" / "parameters.json").write_text(declared)
    with pytest.raises(RepositoryError, match=r"parameters\.json"):
        effective_parameters(models / "toy", LIMITS)


@pytest.mark.parametrize(
    "config",
    [
        {"max_position_embeddings": 2048, "vocab_size": 64},
        {"vocab_size": 1, "text_config": {"max_position_embeddings": 2048, "vocab_size": 64}},
    ],
)
def test_limits_come_from_the_checkpoint(models: Path, tmp_path: Path, config: Any) -> None:
    (models / "toy" / "parameters.json").write_text('{"model_dir": null}')
    given = {"model_dir": str(checkpoint(tmp_path / "checkpoint", config))}
    found = effective_parameters(models / "toy", given)
    assert (found["max_seq_len"], found["vocab_size"]) == ("2048", "64")
    assert effective_parameters(models / "toy", {**given, "max_seq_len": "99"})["max_seq_len"] == "99"


def test_without_a_tokenizer_there_is_no_guided_decoding(models: Path, tmp_path: Path) -> None:
    (models / "toy" / "parameters.json").write_text('{"model_dir": null, "guided_decoding": "regex"}')
    folder = checkpoint(tmp_path / "checkpoint", {"max_position_embeddings": 2048, "vocab_size": 64})
    given = {"model_dir": str(folder)}
    assert effective_parameters(models / "toy", given)["guided_decoding"] == "none"
    assert effective_parameters(models / "toy", {**given, "guided_decoding": "lark"})["guided_decoding"] == "lark"
    (folder / "tokenizer.json").write_text("{}")
    assert effective_parameters(models / "toy", given)["guided_decoding"] == "regex"


def test_limits_that_the_checkpoint_lacks_must_be_given(models: Path, tmp_path: Path) -> None:
    (models / "toy" / "parameters.json").write_text('{"model_dir": null}')
    folder = checkpoint(tmp_path / "checkpoint", {"vocab_size": 64})
    with pytest.raises(RepositoryError, match="needs a value for max_seq_len"):
        effective_parameters(models / "toy", {"model_dir": str(folder)})


def test_a_model_dir_that_is_no_checkpoint_is_refused(models: Path, tmp_path: Path) -> None:
    (models / "toy" / "parameters.json").write_text('{"model_dir": null}')
    with pytest.raises(RepositoryError, match=r"no config\.json"):
        effective_parameters(models / "toy", {"model_dir": str(tmp_path)})


def test_rendering_again_replaces_what_was_rendered(models: Path, tmp_path: Path) -> None:
    given = {**LIMITS, "script": "s"}
    target = render_repository("toy", tmp_path / "target", given, models=models)
    (models / "toy" / "sibling.py").unlink()
    render_repository("toy", target, {**given, "speed": "9"}, models=models)
    assert not (target / "tensorrt_llm" / "1" / "sibling.py").exists()
    assert config_of(target).parameters["speed"].string_value == "9"


def test_a_folder_that_was_not_rendered_is_left_alone(models: Path, tmp_path: Path) -> None:
    kept = tmp_path / "target" / "tensorrt_llm" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(RepositoryError, match="was not rendered here"):
        render_repository("toy", tmp_path / "target", {**LIMITS, "script": "s"}, models=models)
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("model", available_models())
def test_the_models_of_the_project_declare_their_parameters(model: str) -> None:
    """What has no default is missing when nothing is given, and is named."""
    declared = json.loads((MODELS / model / "parameters.json").read_text())
    required = [name for name, default in declared.items() if default is None]
    with pytest.raises(RepositoryError, match="needs a value for") as failure:
        effective_parameters(MODELS / model, {})
    assert all(name in str(failure.value) for name in required)
