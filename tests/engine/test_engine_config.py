"""The configuration of TensorRT-LLM's C++ backend: what it says, and that a real tritonserver can read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engine.cumulative import INPUTS, OUTPUTS, REUSED_BLOCKS
from engine.engine_config import EngineFacts, ModelTable, config_text, read_engine, render_engine
from engine.errors import LaunchFailed, RepositoryError
from engine.launch import EmbeddedTriton, TritonOptions

FACTS = EngineFacts(max_seq_len=4096, vocab_size=1000, max_batch_size=8, tokens_per_block=32)


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    """As trtllm-build leaves it, but for the engine."""
    folder = tmp_path / "engine"
    folder.mkdir()
    document = {
        "pretrained_config": {"vocab_size": 1000},
        "build_config": {"max_seq_len": 4096, "max_batch_size": 8, "plugin_config": {"tokens_per_block": 32}},
    }
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_it_has_what_the_client_sends_and_reads() -> None:
    config = parsed(config_text(FACTS, "/e", {}))
    inputs = {each.name: each for each in config.input}
    assert set(INPUTS) <= set(inputs)
    assert {*OUTPUTS, REUSED_BLOCKS} <= {each.name for each in config.output}
    assert [name for name, each in inputs.items() if not each.optional] == ["input_lengths", "request_output_len"]
    assert config.model_transaction_policy.decoupled
    assert (config.name, config.backend, config.max_batch_size) == ("tensorrt_llm", "tensorrtllm", 8)


def test_what_is_recorded_rests_on_is_set() -> None:
    parameters = {name: each.string_value for name, each in parsed(config_text(FACTS, "/e", {})).parameters.items()}
    assert parameters["normalize_log_probs"] == "false"
    assert parameters["log_probs_streaming"] == "cumulative"
    assert parameters["enable_kv_cache_reuse"] == "true"
    assert parameters["cancellation_check_period_ms"] == "10"
    assert (parameters["max_seq_len"], parameters["vocab_size"], parameters["tokens_per_block"]) == (
        "4096",
        "1000",
        "32",
    )
    assert parameters["gpt_model_path"] == "/e"
    assert "guided_decoding" not in parameters


def test_settings_are_the_backends_own() -> None:
    settings = {"kv_cache_free_gpu_mem_fraction": "0.5", "guided_decoding_backend": "xgrammar"}
    text = config_text(FACTS, "/e", settings, weight_version=3)
    parameters = {name: each.string_value for name, each in parsed(text).parameters.items()}
    assert parameters["kv_cache_free_gpu_mem_fraction"] == "0.5"
    assert parameters["guided_decoding"] == "json,json_schema,regex,ebnf_grammar"
    assert parameters["weight_version"] == "3"


@pytest.mark.parametrize(
    ("name", "reason"), [("kv_cash", "no parameter kv_cash; it has "), ("normalize_log_probs", "must stay false")]
)
def test_other_settings_are_refused(name: str, reason: str) -> None:
    with pytest.raises(RepositoryError, match=reason):
        config_text(FACTS, "/e", {name: "true"})


def test_no_parameter_stands_twice() -> None:
    table = ModelTable.read()
    assert not set(table.defaults) & set(table.optional)
    assert set(table.required) <= set(table.inputs)


def test_the_engine_says_what_it_can(engine_dir: Path) -> None:
    assert read_engine(engine_dir) == FACTS


@pytest.mark.parametrize("text", ["", "[]", '{"build_config": {}}', '{"build_config": {"max_seq_len": "many"}}'])
def test_a_folder_without_an_engine_is_refused(engine_dir: Path, text: str) -> None:
    (engine_dir / "config.json").write_text(text)
    with pytest.raises(RepositoryError, match=r"is .* a folder that trtllm-build wrote"):
        read_engine(engine_dir)


def test_what_was_rendered_before_is_replaced_and_nothing_else(engine_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "repository"
    for fraction in ("0.5", "0.6"):
        render_engine(engine_dir, target, {"kv_cache_free_gpu_mem_fraction": fraction})
    assert "0.6" in (target / "tensorrt_llm" / "config.pbtxt").read_text()
    (tmp_path / "other" / "tensorrt_llm").mkdir(parents=True)
    with pytest.raises(RepositoryError, match="was not rendered here"):
        render_engine(engine_dir, tmp_path / "other")


async def test_a_real_tritonserver_reads_it_and_lacks_only_the_backend(engine_dir: Path, tmp_path: Path) -> None:
    repository = render_engine(engine_dir, tmp_path / "repository")
    with pytest.raises(LaunchFailed, match="unable to find backend library for backend 'tensorrtllm'"):
        async with EmbeddedTriton(TritonOptions(repository, tmp_path / "run", stop_timeout_s=4)):
            pass
