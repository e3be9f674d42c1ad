"""Parameters and checkpoints: what is taken, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import model_repo.transformers as folder
from model_repo.common.parameters import ParameterError, Parameters
from model_repo.common.requests import Limits
from model_repo.transformers.batch import TRANSFORMERS_VERSION, check_library
from model_repo.transformers.settings import Settings, SettingsError, read_settings
from model_repo.transformers.weights import load_model

LIMITS = Limits(vocab_size=32, max_seq_len=100)


class RecordingParameters(Parameters):
    """Knows which parameters were read."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def text(self, name: str, default: str | None = None) -> str:
        self.read.add(name)
        return super().text(name, default)


def settings(limits: Limits = LIMITS, **values: str) -> Settings:
    return read_settings(Parameters({"model_dir": "/models/m", "device": "cpu"} | values), limits)


def test_every_declared_parameter_is_read() -> None:
    declared = json.loads((Path(folder.__file__).parent / "parameters.json").read_text())
    parameters = RecordingParameters({name: value or "/models/m" for name, value in declared.items()})
    read_settings(parameters, LIMITS)
    # guided_decoding is read with the limits, for every model.
    assert parameters.read == {*declared, "weight_version"} - {"guided_decoding"}


def test_defaults_on_the_cpu() -> None:
    result = settings()
    assert (result.device, result.dtype) == (torch.device("cpu"), torch.float32)
    assert result.num_threads >= 1
    assert (result.cache.page_size, result.cache.num_blocks) == (16, 2 * 7)
    assert (result.cache.max_batch_tokens, result.cache.max_batch_requests) == (128, 64)
    assert result.weight_version == 0


def test_adapters_need_a_size_for_their_caches_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    limits = Limits(32, 100, loras=frozenset({"sql"}))
    with pytest.raises(SettingsError, match="parameter num_blocks: needed with loras"):
        settings(limits, device="cuda")
    assert settings(limits, device="cuda", num_blocks="7").cache.num_blocks == 7


def test_only_guides_that_can_be_compiled_may_be_offered() -> None:
    assert not settings().has_guides
    assert settings(Limits(32, 100, frozenset({"regex", "lark"}))).has_guides
    with pytest.raises(SettingsError, match="parameter guided_decoding: 'ebnf_grammar' is none of json, json_schema"):
        settings(Limits(32, 100, frozenset({"ebnf_grammar", "json"})))


def test_given_values() -> None:
    given = {
        "dtype": "bfloat16",
        "num_threads": "3",
        "page_size": "8",
        "num_blocks": "13",
        "max_batch_tokens": "40",
        "max_batch_requests": "5",
        "weight_version": "9",
    }
    result = settings(**given)
    assert (result.dtype, result.num_threads, result.weight_version) == (torch.bfloat16, 3, 9)
    cache = result.cache
    assert (cache.page_size, cache.num_blocks, cache.max_batch_tokens, cache.max_batch_requests) == (8, 13, 40, 5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"device": "tpu9"}, "parameter device: 'tpu9' is not auto, cpu, cuda or cuda:N"),
        ({"device": "meta"}, "parameter device: 'meta' is not"),
        ({"dtype": "int4"}, "parameter dtype: 'int4' is not auto, float32, bfloat16, float16"),
        ({"num_blocks": "6"}, "parameter num_blocks: 6 pages of 16 tokens do not hold one sequence of max_seq_len 100"),
    ],
)
def test_values_without_a_meaning_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**values)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="'cuda', but torch sees no CUDA device here"):
        settings(device="cuda")


@pytest.mark.parametrize("values", [{"page_size": "3"}, {"max_batch_requests": "0"}, {"num_threads": "x"}])
def test_numbers_out_of_range_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ParameterError, match=f"parameter {next(iter(values))}"):
        settings(**values)


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_library()
    monkeypatch.setattr("model_repo.transformers.batch.version", lambda _: "5.25.1")
    with pytest.raises(SettingsError, match=f"pip install transformers=={TRANSFORMERS_VERSION}"):
        check_library()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8
    )
    config.max_position_embeddings = 100
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def test_a_checkpoint_is_loaded_in_the_asked_dtype(checkpoint: Path) -> None:
    assert load_model(settings(model_dir=str(checkpoint))).dtype == torch.float32
    assert load_model(settings(model_dir=str(checkpoint), dtype="bfloat16")).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(vocab_size=31, max_seq_len=100), "parameter vocab_size: 31, but the model has 32 tokens"),
        (Limits(vocab_size=32, max_seq_len=101), "parameter max_seq_len: 101 is beyond the model's 100"),
    ],
)
def test_limits_that_contradict_the_checkpoint_are_refused(checkpoint: Path, limits: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_model(settings(limits, model_dir=str(checkpoint)))
