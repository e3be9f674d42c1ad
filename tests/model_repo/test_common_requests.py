"""Decoding: what the client encodes arrives unchanged, and every wrong value is refused by the tensor's name."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common.control import Control, ControlOp
from common.guides import Guide
from common.loras import read_loras
from common.parameters import ParameterError
from common.requests import ControlRequest, GenerateRequest, InvalidRequest, Limits, StopRequest, decode
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import encode_request
from engine.types import GenerateRequest as ClientRequest
from engine.types import Guide as SentGuide
from engine.types import GuideKind, SamplingParams
from tests.model_repo.doubles import LIMITS, FakeReader, arrays_from_wire, contract


def valid_tensors() -> dict[str, Any]:
    """A complete request of eight prompt ids, each optional tensor given once."""
    request = ClientRequest("r1", np.arange(8, dtype=np.int32), 16, SamplingParams(seed=1), (7,), ((5, 6),))
    return arrays_from_wire(encode_request(request))


def decoded(tensors: dict[str, Any], **reader: Any) -> Any:
    return decode(FakeReader(tensors, **reader), contract(), LIMITS)


ids = st.integers(0, LIMITS.vocab_size - 1)
words = st.lists(ids, min_size=2, max_size=4).map(tuple)


def float32(**bounds: Any) -> st.SearchStrategy[float]:
    return st.floats(width=32, allow_nan=False, allow_infinity=False, **bounds)


@st.composite
def client_requests(draw: st.DrawFn) -> ClientRequest:
    prompt = draw(st.lists(ids, min_size=1, max_size=40))
    max_tokens = draw(st.integers(1, LIMITS.max_seq_len - len(prompt)))
    sampling = SamplingParams(
        temperature=draw(float32(min_value=0)),
        top_p=draw(float32(min_value=0, max_value=1, exclude_min=True)),
        top_k=draw(st.integers(0, 2**31 - 1)),
        seed=draw(st.integers(0, 2**64 - 1)),
        min_tokens=draw(st.integers(0, max_tokens)),
        repetition_penalty=draw(float32(min_value=0, exclude_min=True)),
        presence_penalty=draw(float32()),
        frequency_penalty=draw(float32()),
    )
    return ClientRequest(
        request_id=draw(st.text()),
        prompt_ids=np.array(prompt, dtype=np.int32),
        max_tokens=max_tokens,
        sampling=sampling,
        end_ids=tuple(draw(st.lists(ids, unique=True, max_size=3))),
        stop_words=tuple(draw(st.lists(words, unique=True, max_size=3))),
    )


@given(client_requests())
def test_what_the_client_encodes_is_what_the_model_decodes(sent: ClientRequest) -> None:
    got = decoded(arrays_from_wire(encode_request(sent)), id=sent.request_id)
    assert got.prompt_ids.dtype == np.int32
    assert got.prompt_ids.tolist() == sent.prompt_ids.tolist()
    assert (got.request_id, got.max_tokens, got.end_ids, got.stop_words) == (
        sent.request_id,
        sent.max_tokens,
        sent.end_ids,
        sent.stop_words,
    )
    for name in SamplingParams.__dataclass_fields__:
        assert getattr(got.sampling, name) == getattr(sent.sampling, name), name
    assert (got.streaming, got.return_log_probs, got.exclude_input_in_output) == (True, True, True)


def test_the_least_that_can_be_sent_means_plain_sampling_without_an_end() -> None:
    required = {"input_ids": np.array([[3]], np.int32)}
    required |= {name: np.array([[1]], np.int32) for name in ("input_lengths", "request_output_len")}
    got = decoded(required)
    assert isinstance(got, GenerateRequest)
    assert (got.end_ids, got.stop_words) == ((), ())
    assert (got.sampling.temperature, got.sampling.top_k, got.sampling.top_p) == (1.0, 0, 1.0)
    assert (got.streaming, got.return_log_probs, got.exclude_input_in_output) == (False, False, True)
    assert (got.session, got.turn) == ("", 0)


def test_the_prompt_does_not_change_with_tritons_buffer() -> None:
    ids = np.array([[1, 2, 3, 4, 5, 6, 7, 8]], np.int32)
    got = decoded(valid_tensors() | {"input_ids": ids})
    ids[:] = 0
    assert got.prompt_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_end_id_and_one_token_stop_words_are_the_end_ids_each_once() -> None:
    tensors = valid_tensors() | {
        "end_id": np.array([[4]], np.int32),
        "stop_words_list": np.array([[[4, 8, 5, 6, 5, 6], [1, 2, 4, 6, -1, -1]]], np.int32),
    }
    got = decoded(tensors)
    assert (got.end_ids, got.stop_words) == ((4, 8), ((5, 6),))


def test_an_end_id_of_minus_one_is_none() -> None:
    tensors = valid_tensors() | {"end_id": np.array([[-1]], np.int32)}
    assert decoded(tensors).end_ids == (7,)


def test_session_and_turn_come_from_the_request_parameters_and_others_are_ignored() -> None:
    got = decoded(valid_tensors(), parameters_json='{"session": "s-1", "turn": 4, "priority": 2}')
    assert (got.session, got.turn) == ("s-1", 4)


def test_the_part_of_the_prompt_that_is_already_reply_comes_from_them_too() -> None:
    assert decoded(valid_tensors(), parameters_json='{"continued": 1}').continued == 1
    assert decoded(valid_tensors()).continued == 0


def scalar(value: Any, dtype: type) -> Any:
    with np.errstate(over="ignore"):
        return np.array([[value]], dtype=dtype)


REFUSED = [
    ("input_ids", np.zeros((1, 0), np.int32), "empty"),
    ("input_ids", np.array([[1, -1]], np.int32), "id -1 is outside the vocabulary of 1000 tokens"),
    ("input_ids", np.array([[1000, 1]], np.int32), "id 1000 is outside"),
    ("input_ids", np.zeros((1, 8), np.int64), "dtype is int64, not INT32"),
    ("input_ids", np.zeros((8,), np.int32), r"shape is \[8\], not \[1, -1\]"),
    ("input_ids", np.zeros((2, 8), np.int32), r"shape is \[2, 8\]"),
    ("input_ids", None, "missing"),
    ("input_lengths", scalar(7, np.int32), "7 for 8 input_ids"),
    ("input_lengths", None, "missing"),
    ("request_output_len", scalar(0, np.int32), "0 is not at least 1"),
    ("request_output_len", scalar(-3, np.int32), "-3 is not at least 1"),
    ("request_output_len", None, "missing"),
    ("end_id", scalar(1000, np.int32), "1000 is not -1 or in the vocabulary"),
    ("end_id", scalar(-2, np.int32), "-2 is not -1 or in the vocabulary"),
    ("pad_id", scalar(1000, np.int32), "1000 is not -1 or in the vocabulary"),
    ("stop_words_list", np.array([[[1, 2], [2, 1]]], np.int32), "do not rise"),
    ("stop_words_list", np.array([[[1, 2], [0, 2]]], np.int32), "do not rise"),
    ("stop_words_list", np.array([[[1, 2], [3, -1]]], np.int32), "offset 3 lies beyond the 2 ids"),
    ("stop_words_list", np.array([[[1, 2], [-1, 2]]], np.int32), "an offset follows the padding"),
    ("stop_words_list", np.array([[[1, -5], [2, -1]]], np.int32), "id -5 is outside"),
    ("stop_words_list", np.array([[[1, 1000], [1, 2]]], np.int32), "id 1000 is outside"),
    ("stop_words_list", np.zeros((1, 3, 2), np.int32), "shape"),
    ("temperature", scalar(math.nan, np.float32), "nan is not a finite number of at least 0"),
    ("temperature", scalar(math.inf, np.float32), "inf is not"),
    ("temperature", scalar(-0.5, np.float32), "-0.5 is not"),
    ("temperature", scalar(1.0, np.float64), "dtype is float64, not FP32"),
    ("runtime_top_k", scalar(-1, np.int32), "-1 is not at least 0"),
    ("runtime_top_p", scalar(0.0, np.float32), "0.0 is not above 0 and at most 1"),
    ("runtime_top_p", scalar(1.5, np.float32), "1.5 is not"),
    ("runtime_top_p", scalar(math.nan, np.float32), "nan is not"),
    ("min_tokens", scalar(-1, np.int32), "-1 is not between 0 and request_output_len 16"),
    ("min_tokens", scalar(17, np.int32), "17 is not between"),
    ("repetition_penalty", scalar(0.0, np.float32), "0.0 is not a finite number above 0"),
    ("repetition_penalty", scalar(math.nan, np.float32), "nan is not"),
    ("presence_penalty", scalar(math.inf, np.float32), "inf is not a finite number"),
    ("frequency_penalty", scalar(-math.inf, np.float32), "-inf is not a finite number"),
    ("seed", np.array([1], np.uint64), "shape"),
    ("seed", scalar(1, np.int64), "dtype"),
    ("streaming", scalar(1, np.int32), "dtype is int32, not BOOL"),
    ("stop", np.array([True]), "shape"),
    ("control", np.array([[b"no json"]], object), "not JSON"),
    ("control", np.array([[b"\xff"]], object), "not JSON"),
    ("control", np.array([[b"[1]"]], object), "not a JSON object"),
    ("control", np.array([[b'{"op": "dance"}']], object), "op 'dance' is not one of stats, flush, update_weights"),
    ("control", np.array([[b'{"op": ["stats"]}']], object), "is not one of"),
    ("control", np.array([[b'{"op": "flush", "version": 1}']], object), "unknown key 'version' for flush"),
    ("control", np.array([[b'{"op": "update_weights"}']], object), "version is not an integer"),
    ("control", np.array([[b'{"op": "update_weights", "version": true}']], object), "version is not an integer"),
    ("control", np.array([[b'{"op": "update_weights", "version": 1, "path": 3}']], object), "path is not a text"),
]


@pytest.mark.parametrize(("name", "array", "reason"), REFUSED)
def test_a_wrong_value_is_refused_by_name(name: str, array: Any, reason: str) -> None:
    tensors = valid_tensors()
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    if name == "input_ids" and array is not None:
        tensors["input_lengths"] = scalar(array.shape[-1], np.int32)
    with pytest.raises(InvalidRequest, match=rf"^{name}: .*{reason}"):
        decoded(tensors)


def test_a_prompt_that_leaves_no_room_is_too_long_and_one_that_just_fits_is_not() -> None:
    tensors = valid_tensors() | {"request_output_len": scalar(LIMITS.max_seq_len - 8, np.int32)}
    assert decoded(tensors).max_tokens == 56
    tensors["request_output_len"] = scalar(LIMITS.max_seq_len - 7, np.int32)
    reason = "^input_ids: prompt too long: 8 tokens and 57 new ones exceed max_seq_len 64"
    with pytest.raises(InvalidRequest, match=reason):
        decoded(tensors)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ('{"session": 3}', "session"),
        ('{"turn": "1"}', "turn"),
        ('{"turn": -1}', "turn"),
        ('{"turn": true}', "turn"),
        ('{"continued": -1}', "continued"),
        ('{"continued": 1000}', "continued"),
    ],
)
def test_a_wrong_request_parameter_is_refused_by_name(parameters: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^parameter {name}: "):
        decoded(valid_tensors(), parameters_json=parameters)


GUIDING = replace(LIMITS, guides=frozenset({"regex", "lark"}))


def guided(**tensors: bytes) -> dict[str, Any]:
    named = {f"guided_decoding_{name}": np.array([[text]], dtype=object) for name, text in tensors.items()}
    return valid_tensors() | named


def test_a_guide_arrives_as_the_client_encodes_it() -> None:
    request = ClientRequest("r", np.arange(8, dtype=np.int32), 16, guide=SentGuide(GuideKind.LARK, 'start: "é"'))
    got = decode(FakeReader(arrays_from_wire(encode_request(request))), contract(), GUIDING)
    assert isinstance(got, GenerateRequest)
    assert got.guide == Guide("lark", 'start: "é"')
    assert decoded(valid_tensors()).guide is None


@pytest.mark.parametrize(
    ("tensors", "limits", "reason"),
    [
        (
            guided(guide_type=b"regex", guide=b"a"),
            LIMITS,
            "_type: 'regex' is not offered .* there is no guided decoding",
        ),
        (
            guided(guide_type=b"json", guide=b""),
            GUIDING,
            "_type: 'json' is not offered by this model; there is lark, regex",
        ),
        (guided(guide=b"a+"), GUIDING, "_type: missing, though there is a guide"),
        (guided(guide_type=b"regex", guide=b"\xff"), GUIDING, ": not UTF-8"),
        (guided(guide_type=b"regex", guide=b"a" * (2**20 + 1)), GUIDING, ": 1048577 bytes, more than 1048576"),
    ],
)
def test_a_wrong_guide_is_refused_by_name(tensors: dict[str, Any], limits: Limits, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^guided_decoding_guide{reason}"):
        decode(FakeReader(tensors), contract(), limits)


def test_an_adapter_is_one_that_the_model_has_loaded() -> None:
    limits = replace(LIMITS, loras=frozenset({"sql", "law"}))
    sent = valid_tensors() | {"lora": np.array([[b"sql"]], dtype=object)}
    request = decode(FakeReader(sent), contract(), limits)
    assert isinstance(request, GenerateRequest)
    assert request.lora == "sql"
    with pytest.raises(InvalidRequest, match=r"^lora: there is no 'sql'; loaded: none$"):
        decode(FakeReader(sent), contract(), LIMITS)
    other = valid_tensors() | {"lora": np.array([[b"\xff"]], dtype=object)}
    with pytest.raises(InvalidRequest, match=r"^lora: there is no '.'; loaded: law, sql$"):
        decode(FakeReader(other), contract(), limits)


@pytest.mark.parametrize("listed", ["sql", "=a", "sql=", "sql=a,sql=b"])
def test_a_list_of_adapters_that_cannot_be_meant_is_refused(listed: str) -> None:
    with pytest.raises(ParameterError, match=r"^parameter loras: "):
        read_loras(listed)
    assert read_loras("sql=a=b,law=/c") == {"sql": Path("a=b"), "law": Path("/c")}


def test_stop_needs_nothing_else_to_be_valid() -> None:
    tensors = {"stop": np.array([[True]]), "input_ids": np.zeros((1, 0), np.int32)}
    assert decoded(tensors, id="other") == StopRequest("other")


def test_stop_false_is_an_ordinary_request() -> None:
    assert isinstance(decoded(valid_tensors() | {"stop": np.array([[False]])}), GenerateRequest)


@pytest.mark.parametrize(
    ("text", "control"),
    [
        (b'{"op": "stats"}', Control(ControlOp.STATS)),
        (b'{"op": "flush"}', Control(ControlOp.FLUSH)),
        (b'{"op": "update_weights", "version": 7}', Control(ControlOp.UPDATE_WEIGHTS, 7)),
        (b'{"op": "update_weights", "version": 7, "path": "/w"}', Control(ControlOp.UPDATE_WEIGHTS, 7, "/w")),
    ],
)
def test_control(text: bytes, control: Control) -> None:
    tensors = {"control": np.array([[text]], dtype=object), "input_ids": np.zeros((1, 0), np.int32)}
    assert decoded(tensors) == ControlRequest("r1", control)
