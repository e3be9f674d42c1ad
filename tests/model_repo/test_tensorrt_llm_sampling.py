"""A request's way into ``SamplingParams``, and its tokens' way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from common.guides import Guide

from model_repo.tensorrt_llm.library import Library, load_library
from model_repo.tensorrt_llm.names import read_features
from model_repo.tensorrt_llm.sampling import RequestRefused, sampling_params
from model_repo.tensorrt_llm.tokens import EngineFault, cached_tokens, new_tokens
from tests.model_repo.doubles import make_request
from tests.model_repo.llm_engines import make_settings
from tests.support.llm_api_stand_in import NEW, OLD, installed


@pytest.fixture(params=[OLD, NEW])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with installed(request.param):
        yield load_library()


def params_of(library: Library, guide_end: int | None = None, **changes: Any) -> Any:
    return params_with(library, {}, guide_end, **changes)


def params_with(library: Library, parameters: dict[str, str], guide_end: int | None = None, **changes: Any) -> Any:
    features = read_features(library.names, library.version, make_settings(Path("model"), **parameters))
    return sampling_params(make_request(**changes), library, features, guide_end)


def test_everything_is_given_so_that_no_default_decides(library: Library) -> None:
    params = params_of(library, temperature=0.5, top_k=7, top_p=0.9, seed=2**64 - 1, end_ids=(9,))
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.5, 7, 0.9, 2**64 - 1)
    assert (params.max_tokens, params.detokenize, params.n) == (10, False, 1)
    assert params.logprobs == (1 if library.version == "1.2.1" else 0)


def test_plain_sampling_is_not_taken_for_greedy(library: Library) -> None:
    params = params_of(library)
    assert (params.temperature, params.top_k, params.top_p) == (1.0, 0, 1.0)


def test_greedy_needs_no_temperature_of_0(library: Library) -> None:
    params = params_of(library, temperature=0.0, top_k=40, top_p=0.5)
    assert (params.temperature, params.top_k, params.top_p) == (1.0, 1, 1.0)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"end_ids": ()}, (0, True, None, None)),
        ({"end_ids": (), "min_tokens": 3}, (0, True, None, None)),
        ({"end_ids": (9,)}, (9, False, None, None)),
        ({"end_ids": (9, 8, 7)}, (9, False, [8, 7], None)),
        ({"end_ids": (9, 8, 7), "min_tokens": 3}, (0, True, None, None)),
    ],
)
def test_ends(library: Library, changes: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    params = params_of(library, **changes)
    assert (params.end_id, params.ignore_eos, params.stop_token_ids, params.min_tokens) == wanted
    assert params.pad_id == params.end_id
    assert params.include_stop_str_in_output or not params.stop_token_ids


@pytest.mark.parametrize(
    ("guide", "field_name", "value"),
    [
        (Guide("json", ""), "json_object", True),
        (Guide("json_schema", "{}"), "json", "{}"),
        (Guide("regex", "a+"), "regex", "a+"),
        (Guide("lark", "start: /a/"), "grammar", "start: /a/"),
        (Guide("ebnf_grammar", 'root ::= "a"'), "grammar", 'root ::= "a"'),
    ],
)
def test_guides(library: Library, guide: Guide, field_name: str, value: Any) -> None:
    params = params_of(library, guide_end=9, guide=guide)
    assert getattr(params.guided_decoding, field_name) == value
    others = {"json_object", "json", "regex", "grammar"} - {field_name}
    assert not any(getattr(params.guided_decoding, other) for other in others)


@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 1.1}, {"presence_penalty": -1.0}, {"frequency_penalty": 2.0}]
)
def test_a_penalty_goes_there_or_is_refused(library: Library, changes: dict[str, float]) -> None:
    ((name, value),) = changes.items()
    if library.version == "1.2.1":
        with pytest.raises(RequestRefused, match=f"^{name}: the sampler of TensorRT-LLM 1.2.1 does not apply it"):
            params_of(library, **changes)
    else:
        with pytest.raises(RequestRefused, match=f"^{name}: TensorRT-LLM takes raw log probs after it"):
            params_of(library, **changes)
        assert getattr(params_with(library, {"log_prob_mode": "processed"}, **changes), name) == value


def test_the_parameter_penalties_overrules_the_version(library: Library) -> None:
    for choice, has in (("on", True), ("off", False)):
        settings = make_settings(Path("model"), penalties=choice)
        assert read_features(library.names, library.version, settings).penalties is has


@dataclass
class Logprob:
    logprob: float


@dataclass
class Output:
    token_ids: list[int]
    logprobs: list[Any] = field(default_factory=list)


def test_only_new_tokens_are_read_in_either_format() -> None:
    dicts = [{4: Logprob(-1.0)}, {7: Logprob(-0.1), 5: Logprob(-2.0)}, {6: -3.0}]
    assert list(new_tokens(Output([4, 5, 6], dicts), 1)) == [(5, -2.0), (6, -3.0)]
    assert list(new_tokens(Output([4, 5, 6], [-1.0, -2.0, -3.0, -9.0]), 2)) == [(6, -3.0)]
    assert list(new_tokens(Output([4, 5], [-1.0, -2.0]), 2)) == []


def test_a_log_prob_a_hair_above_0_is_0() -> None:
    assert list(new_tokens(Output([4], [1e-6]), 0)) == [(4, 0.0)]


@pytest.mark.parametrize(
    ("log_probs", "words"),
    [
        ([], "0 log probs for 1 new tokens"),
        ([{3: Logprob(-1.0)}], "not of the sampled token 4"),
        ([float("nan")], "the log prob nan for token 4"),
        ([float("-inf")], "the log prob -inf for token 4"),
        ([0.5], "the log prob 0.5 for token 4"),
    ],
)
def test_a_token_without_its_log_prob_breaks_the_reply(log_probs: list[Any], words: str) -> None:
    with pytest.raises(EngineFault) as failure:
        list(new_tokens(Output([4], log_probs), 0))
    assert words in str(failure.value)


@pytest.mark.parametrize(("update", "count"), [({"cached_tokens": 32}, 32), ({"cached_tokens": 99}, 40), ({}, 0)])
def test_cached_tokens(update: dict[str, int], count: int) -> None:
    assert cached_tokens(SimpleNamespace(**update), 40) == count
