"""Parameters, the engine's YAML and the table of names: what is refused when the model loads, and in which words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from model_repo.tensorrt_llm.library import load_library
from model_repo.tensorrt_llm.llm_engine import LlmEngine
from model_repo.tensorrt_llm.names import NAMES, read_features
from model_repo.tensorrt_llm.settings import SettingsError
from model_repo.tensorrt_llm.warnings_of import known_faults
from tests.model_repo.llm_engines import make_settings
from tests.support.llm_api_stand_in import NEW, OLD, installed


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    with installed(NEW):
        load_library()
        checkpoint: Path = sys.modules["stand_in_network"].write_checkpoint(tmp_path / "model", seed=1)
        return checkpoint


def yaml_file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    return str(file)


def test_parameters_become_the_arguments_of_llm(tmp_path: Path) -> None:
    further = yaml_file(tmp_path, "stream_interval: 2\nkv_cache_config: {tokens_per_block: 16}\n")
    settings = make_settings(
        tmp_path,
        engine_yaml=further,
        tensor_parallel_size="4",
        pipeline_parallel_size="2",
        expert_parallel_size="4",
        kv_cache_reuse="false",
        max_batch_requests="32",
        max_batch_tokens="1024",
    )
    assert settings.llm_args == {
        "max_seq_len": 256,
        "dtype": "auto",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "moe_expert_parallel_size": 4,
        "enable_chunked_prefill": True,
        "skip_tokenizer_init": True,
        "max_batch_size": 32,
        "max_num_tokens": 1024,
        "stream_interval": 2,
        "kv_cache_config": {"tokens_per_block": 16, "enable_block_reuse": False, "free_gpu_memory_fraction": 0.9},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensor_parallel_size: 2", "tensor_parallel_size is set by the parameter tensor_parallel_size"),
        ("kv_cache_config: {enable_block_reuse: true}", "kv_cache_config.enable_block_reuse is set by"),
        ("- a list", "is not a table"),
        ("kv_cache_config: 3", "is not a table"),
        ("a: [", "is not YAML"),
        ("backend: tensorrt", "for pytorch only"),
    ],
)
def test_a_yaml_that_contradicts_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match="parameter engine_yaml: ") as failure:
        make_settings(tmp_path, engine_yaml=yaml_file(tmp_path, text))
    assert words in str(failure.value)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"kv_cache_reuse": "yes"}, "kv_cache_reuse: 'yes' is neither true nor false"),
        ({"kv_cache_fraction": "1"}, "kv_cache_fraction: 1.0 is not between 0 and 1"),
        ({"penalties": "some"}, "penalties: 'some' is none of auto, on, off"),
        ({"guided_decoding": "ebnf_grammar"}, "guided_decoding: llguidance has no 'ebnf_grammar'"),
        ({"weight_update": "in_place"}, "weight_update: in_place needs orchestrator_type: ray"),
        ({"guided_decoding": "json"}, "guided_decoding: TensorRT-LLM masks the logits before it takes log probs"),
        ({"engine_yaml": "/nowhere"}, "engine_yaml: /nowhere: No such file"),
    ],
)
def test_a_wrong_parameter_is_named(tmp_path: Path, parameters: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as failure:
        make_settings(tmp_path, **parameters)
    assert words in str(failure.value)


@pytest.mark.parametrize("flavour", [OLD, NEW])
def test_a_key_that_the_version_does_not_know_fails_the_load_with_its_message(
    flavour: str, model_dir: Path, tmp_path: Path
) -> None:
    settings = make_settings(model_dir, engine_yaml=yaml_file(tmp_path, "no_such_key: 1"))
    with installed(flavour):
        with pytest.raises(SettingsError, match="got invalid argument: no_such_key"):
            LlmEngine(load_library(), settings)


def test_the_versions_differ_in_what_the_table_says(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with installed(OLD):
        old = load_library()
    with installed(NEW):
        new = load_library()
    before, after = (read_features(found.names, found.version, settings) for found in (old, new))
    assert (before.logprobs, before.logprobs_mode, before.penalties, before.cache_salt) == (1, None, False, False)
    assert (after.logprobs, str(after.logprobs_mode), after.penalties, after.cache_salt) == (0, "raw", True, True)
    assert (before.check_health, before.collective_rpc) == (False, False)
    assert (after.check_health, after.collective_rpc) == (True, True)


def test_processed_log_probs_need_a_version_that_has_the_choice(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, log_prob_mode="processed")
    with installed(OLD):
        old = load_library()
    with pytest.raises(
        SettingsError, match=r"log_prob_mode: processed, but TensorRT-LLM 1\.2\.1 .* raw log probs only"
    ):
        read_features(old.names, old.version, settings)
    with installed(NEW):
        new = load_library()
    assert str(read_features(new.names, new.version, settings).logprobs_mode) == "processed"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.without], ids=lambda name: name.name)
def test_a_name_without_a_fallback_stops_the_load(tmp_path: Path, name: Any) -> None:
    with installed(NEW):
        found = load_library()
    classes = {owner: value for owner, value in found.names.items() if owner != name.owner.split(".")[0]}
    with pytest.raises(SettingsError, match=f"has no {name.owner.split('.')[0]}"):
        read_features(classes, found.version, make_settings(tmp_path))


def test_guides_and_adapters_need_their_classes(tmp_path: Path) -> None:
    with installed(NEW):
        found = load_library()
    without = {
        name: value for name, value in found.names.items() if name not in ("GuidedDecodingParams", "LoRARequest")
    }
    read_features(without, found.version, make_settings(tmp_path))
    with pytest.raises(SettingsError, match="guided_decoding must be none"):
        read_features(
            without, found.version, make_settings(tmp_path, guided_decoding="json", log_prob_mode="processed")
        )
    with pytest.raises(SettingsError, match="loras must be empty"):
        read_features(without, found.version, make_settings(tmp_path, loras=f"a={tmp_path}"))


def test_without_the_library_the_load_says_where_to_find_it() -> None:
    with pytest.raises(SettingsError, match="inside Triton's TensorRT-LLM container"):
        load_library()


def test_known_faults_of_a_version_are_warned_of(tmp_path: Path) -> None:
    cache = yaml_file(tmp_path, "kv_cache_config: {host_cache_size: 1, dtype: fp8}")
    settings = make_settings(tmp_path, engine_yaml=cache, guided_decoding="json", log_prob_mode="processed")
    assert [line.split("#")[1][:4] for line in known_faults(settings, "1.2.1")] == ["8813", "2699", "2660"]
    assert list(known_faults(settings, "1.3.0rc1")) == []
