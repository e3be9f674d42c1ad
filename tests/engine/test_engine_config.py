"""The configuration of TensorRT-LLM's C++ backend: what it says, and that a real tritonserver can read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engine.cumulative import INPUTS, OUTPUTS, REUSED_BLOCKS
from engine.engine_config import GUIDES, EngineFacts, config_text, read_engine, render_engine
from engine.engine_parameters import EMPTY, FIXED, REFUSED, ModelTable
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


def parameters_of(settings: dict[str, str], **more: Any) -> dict[str, str]:
    config = parsed(config_text(FACTS, "/e", settings, **more))
    return {name: each.string_value for name, each in config.parameters.items()}


def test_it_has_what_the_client_sends_and_reads() -> None:
    config = parsed(config_text(FACTS, "/e", {}))
    inputs = {each.name: each for each in config.input}
    assert set(INPUTS) <= set(inputs)
    assert {*OUTPUTS, REUSED_BLOCKS} <= {each.name for each in config.output}
    assert [name for name, each in inputs.items() if not each.optional] == ["input_lengths", "request_output_len"]
    assert config.model_transaction_policy.decoupled
    assert (config.name, config.backend, config.max_batch_size) == ("tensorrt_llm", "tensorrtllm", 8)


def test_what_is_recorded_rests_on_is_set() -> None:
    parameters = parameters_of({})
    assert parameters["normalize_log_probs"] == "false"
    assert parameters["max_beam_width"] == "1"
    assert parameters["exclude_input_in_output"] == "true"
    assert parameters["log_probs_streaming"] == "cumulative"
    assert parameters["enable_kv_cache_reuse"] == "true"
    assert parameters["cancellation_check_period_ms"] == "10"
    assert (parameters["max_seq_len"], parameters["vocab_size"], parameters["tokens_per_block"]) == (
        "4096",
        "1000",
        "32",
    )
    assert parameters["gpt_model_path"] == "/e"


def test_settings_are_the_backends_own() -> None:
    parameters = parameters_of({"kv_cache_free_gpu_mem_fraction": "0.5"}, weight_version=3)
    assert parameters["kv_cache_free_gpu_mem_fraction"] == "0.5"
    assert parameters["weight_version"] == "3"


XGRAMMAR = {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": "/info.json"}


def test_the_parameters_without_which_the_backend_does_not_load_are_there_and_empty() -> None:
    assert {name: parameters_of({}).get(name) for name in EMPTY} == dict.fromkeys(EMPTY, "")
    assert set(EMPTY) == {"tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"}


@pytest.mark.parametrize("settings", [{}, dict.fromkeys(XGRAMMAR, "")])
def test_guides_are_not_offered_where_the_backend_decodes_by_none(settings: dict[str, str]) -> None:
    assert "guided_decoding" not in parameters_of(settings)


def test_guides_are_offered_where_the_backend_has_all_that_it_needs() -> None:
    parameters = parameters_of(XGRAMMAR)
    assert parameters["guided_decoding"] == GUIDES
    assert {name: parameters[name] for name in EMPTY} == {"tokenizer_dir": "", **XGRAMMAR}


def test_the_queue_is_limited_by_the_policy_that_the_backend_reads() -> None:
    config = parsed(config_text(FACTS, "/e", {"max_queue_size": "7"}))
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert "max_queue_size" not in config.parameters
    assert not parsed(config_text(FACTS, "/e", {})).dynamic_batching.HasField("default_queue_policy")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv_cash": "1"}, "no parameter kv_cash; it has "),
        ({"normalize_log_probs": "true"}, "normalize_log_probs must stay false"),
        ({"max_beam_width": "4"}, "max_beam_width must stay 1"),
        ({"tokenizer_dir": "/t"}, "tokenizer_dir is not offered: the backend ignores it"),
        ({"enable_trt_overlap": "true"}, "enable_trt_overlap is not offered"),
        ({"guided_decoding_backend": "xgrammar"}, "does nothing without xgrammar_tokenizer_info_path"),
        ({"xgrammar_tokenizer_info_path": "/i"}, "does nothing without guided_decoding_backend"),
        ({**XGRAMMAR, "guided_decoding_backend": "llguidance"}, "guided_decoding_backend is 'llguidance', .* xgrammar"),
        ({"lookahead_ngram_size": "3"}, "lookahead_ngram_size does nothing without decoding_mode=lookahead"),
        ({"decoding_mode": "lookahead", "lookahead_ngram_size": "3"}, "needs lookahead_window_size, "),
        ({"decoding_mode": "beam_search"}, "decoding_mode is 'beam_search'"),
        ({"gpt_model_type": "V1"}, "gpt_model_type is 'V1'"),
    ],
)
def test_what_would_be_ignored_or_not_load_is_refused_by_name(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(RepositoryError, match=reason):
        config_text(FACTS, "/e", settings)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("enable_kv_cache_reuse", ["true", "False", "0"], ["yes", "", "on"]),
        ("kv_cache_free_gpu_mem_fraction", ["0.5", "1", ".25", "1.0"], ["90%", "1.5", "-0.1", "."]),
        ("max_queue_size", ["1", "4096"], ["0", "-1", "many", "12345678901"]),
        ("iter_stats_max_iterations", ["0", "1000"], ["-1", "1e3", "12345678901"]),
        ("kv_cache_host_memory_bytes", ["0", "45000000000"], ["1G"]),
        ("max_attention_window_size", ["4096", "512,4096", "512, 4096"], ["512;4096", "512,", ""]),
        ("gpu_device_ids", ["0", "0,1;2,3"], ["0-3", "0,1;"]),
        ("medusa_choices", ["{0}, {0, 1}"], ["0,1", "{0", "{}"]),
        ("batch_scheduler_policy", ["guaranteed_no_evict"], ["no_evict"]),
        ("lora_prefetch_dir", ["/adapters"], [""]),
    ],
)
def test_a_value_that_the_backend_cannot_convert_is_refused(name: str, good: list[str], bad: list[str]) -> None:
    for value in good:
        config_text(FACTS, "/e", {name: value})
    for value in bad:
        with pytest.raises(RepositoryError, match=f"^{name} is .*, which the backend would ignore: it takes "):
            config_text(FACTS, "/e", {name: value})


def test_lookahead_decoding_may_be_set_whole() -> None:
    sizes = dict.fromkeys(("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"), "5")
    assert sizes.items() <= parameters_of({"decoding_mode": "lookahead", **sizes}).items()


def test_the_table_agrees_with_itself() -> None:
    table = ModelTable.read()
    table.check(table.defaults)
    assert not set(table.parameters) & {*FIXED, *REFUSED}
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
    repository = render_engine(engine_dir, tmp_path / "repository", {**XGRAMMAR, "max_queue_size": "7"})
    with pytest.raises(LaunchFailed, match="unable to find backend library for backend 'tensorrtllm'"):
        async with EmbeddedTriton(TritonOptions(repository, tmp_path / "run", stop_timeout_s=4)):
            pass
