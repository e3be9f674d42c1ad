"""The wire contract: what is sent is what was asked for, and no malformed answer passes as tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import (
    GENERATE_OUTPUTS,
    INPUTS,
    OUTPUTS,
    WireTensor,
    contract_document,
    decode_chunk,
    decode_control_reply,
    encode_control,
    encode_request,
    encode_word_list,
)
from engine.errors import EngineProtocolError, EngineRejected
from engine.types import Finished, FinishReason, GenerateRequest, Guide, GuideKind, SamplingParams

DTYPES = {"INT32": "<i4", "FP32": "<f4", "UINT64": "<u8", "BOOL": "?"}
IDS = st.integers(0, 2**31 - 1)
WORDS = st.lists(st.lists(IDS, min_size=1, max_size=5), min_size=1, max_size=6)


def tensor(name: str, dtype: str, values: Any) -> WireTensor:
    array = np.asarray(values, dtype=DTYPES[dtype])
    return WireTensor(name, dtype, array.shape, array.tobytes())


def text_tensor(name: str, value: bytes) -> WireTensor:
    return WireTensor(name, "BYTES", (1, 1), len(value).to_bytes(4, "little") + value)


def response(ids: list[int], log_probs: list[float]) -> dict[str, WireTensor]:
    tensors = [
        tensor("output_ids", "INT32", [[ids]]),
        tensor("sequence_length", "INT32", [[len(ids)]]),
        tensor("output_log_probs", "FP32", [[log_probs]]),
        tensor("weight_version", "INT32", [[3]]),
        tensor("cached_tokens", "INT32", [[2]]),
        text_tensor("finish_reason", b"stop"),
    ]
    return {found.name: found for found in tensors}


def values_of(tensors: list[WireTensor]) -> dict[str, Any]:
    return {found.name: np.frombuffer(found.data, DTYPES[found.dtype]).reshape(found.shape) for found in tensors}


def prompt(*ids: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(ids, dtype=np.int32)


def test_a_request_carries_every_value() -> None:
    sampling = SamplingParams(0.7, 0.9, 40, 2**64 - 1, 3, 1.1, 0.2, 0.3)
    sent = values_of(encode_request(GenerateRequest("r", prompt(5, 6, 7), 12, sampling, (9, 8), ((1, 2),))))
    expected = {
        "input_ids": [[5, 6, 7]],
        "input_lengths": [[3]],
        "request_output_len": [[12]],
        "temperature": [[0.7]],
        "runtime_top_p": [[0.9]],
        "runtime_top_k": [[40]],
        "seed": [[2**64 - 1]],
        "min_tokens": [[3]],
        "repetition_penalty": [[1.1]],
        "presence_penalty": [[0.2]],
        "frequency_penalty": [[0.3]],
        "return_log_probs": [[True]],
        "streaming": [[True]],
        "exclude_input_in_output": [[True]],
        "stop_words_list": [[[9, 8, 1, 2], [1, 2, 4, -1]]],
    }
    assert sent.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(sent[name], np.array(value, dtype=sent[name].dtype), err_msg=name)


def test_a_request_has_the_dtypes_and_ranks_of_the_table() -> None:
    specs = {spec.name: spec for spec in INPUTS}
    tensors = encode_request(GenerateRequest("r", prompt(1), 1, end_ids=(2,))) + encode_control({"op": "stats"})
    for sent in tensors:
        assert sent.dtype == specs[sent.name].dtype
        assert len(sent.shape) == 1 + len(specs[sent.name].dims)
        assert sent.shape[0] == 1


def test_a_guide_travels_as_two_strings() -> None:
    plain = {sent.name for sent in encode_request(GenerateRequest("r", prompt(1), 1))}
    guided = encode_request(GenerateRequest("r", prompt(1), 1, guide=Guide(GuideKind.REGEX, "é+")))
    added = [sent for sent in guided if sent.name not in plain]
    assert added == [
        WireTensor("guided_decoding_guide_type", "BYTES", (1, 1), b"\x05\0\0\0regex"),
        WireTensor("guided_decoding_guide", "BYTES", (1, 1), b"\x03\0\0\0\xc3\xa9+"),
    ]


def test_an_adapter_travels_by_name() -> None:
    (added,) = encode_request(GenerateRequest("r", prompt(1), 1, lora="sql"))[-1:]
    assert added == WireTensor("lora", "BYTES", (1, 1), b"\x03\0\0\0sql")


def test_without_end_ids_and_stop_words_there_is_no_word_list() -> None:
    names = {sent.name for sent in encode_request(GenerateRequest("r", prompt(1), 1, stop_words=((),)))}
    assert not names & {"stop_words_list", "end_id"}


def test_the_prompt_of_a_slice_is_sent_as_it_reads() -> None:
    every_second = np.arange(10, dtype=np.int32)[::2]
    assert values_of(encode_request(GenerateRequest("r", every_second, 1)))["input_ids"].tolist() == [[0, 2, 4, 6, 8]]


@pytest.mark.parametrize("wrong", [np.arange(3), np.zeros((1, 3), np.int32), np.zeros((), np.int32), np.zeros(3)])
def test_a_prompt_of_another_type_is_a_programming_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="prompt_ids"):
        encode_request(GenerateRequest("r", wrong, 1))


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("seed", GenerateRequest("r", prompt(1), 1, SamplingParams(seed=2**64))),
        ("seed", GenerateRequest("r", prompt(1), 1, SamplingParams(seed=-1))),
        ("runtime_top_k", GenerateRequest("r", prompt(1), 1, SamplingParams(top_k=2**31))),
        ("temperature", GenerateRequest("r", prompt(1), 1, SamplingParams(temperature=float("nan")))),
        ("temperature", GenerateRequest("r", prompt(1), 1, SamplingParams(temperature=1e39))),
        ("runtime_top_p", GenerateRequest("r", prompt(1), 1, SamplingParams(top_p=float("inf")))),
        ("request_output_len", GenerateRequest("r", prompt(1), 2**31)),
        ("stop_words_list", GenerateRequest("r", prompt(1), 1, end_ids=(2**31,))),
    ],
)
def test_a_value_that_the_dtype_cannot_hold_is_refused_by_name(name: str, request_: GenerateRequest) -> None:
    with pytest.raises(EngineRejected, match=name):
        encode_request(request_)


def test_the_word_list_of_tensorrt_llm() -> None:
    encoded = encode_word_list("stop_words_list", [[5, 7, 3], [9, 2]])
    assert encoded.shape == (1, 2, 5)
    assert values_of([encoded])["stop_words_list"].tolist() == [[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]]


@given(WORDS)
def test_a_word_list_can_be_read_back(words: list[list[int]]) -> None:
    ids, ends = values_of([encode_word_list("w", words)])["w"][0]
    used = [int(end) for end in ends if end != -1]
    assert ends.tolist() == used + [-1] * (len(ids) - len(used))
    assert [ids[start:end].tolist() for start, end in zip([0, *used], used, strict=False)] == words


def test_a_chunk() -> None:
    chunk = decode_chunk(response([4, 5], [-0.5, 0.0]), final=False, vocab_size=6)
    assert chunk.ids.tolist() == [4, 5] and chunk.ids.dtype == np.int32
    assert chunk.log_probs.tolist() == [-0.5, 0.0] and chunk.log_probs.dtype == np.float32
    assert (chunk.weight_version, chunk.finished) == (3, None)


def test_the_last_chunk_may_hold_no_ids() -> None:
    chunk = decode_chunk(response([], []), final=True, vocab_size=6)
    assert (len(chunk.ids), len(chunk.log_probs)) == (0, 0)
    assert chunk.finished == Finished(FinishReason.STOP, cached_tokens=2)


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(-100, 0, width=32)), max_size=8))
def test_ids_and_log_probs_come_out_as_they_were_sent(tokens: list[tuple[int, float]]) -> None:
    ids, log_probs = [token for token, _ in tokens], [value for _, value in tokens]
    chunk = decode_chunk(response(ids, log_probs), final=True, vocab_size=100)
    assert chunk.ids.tolist() == ids
    assert chunk.log_probs.tolist() == log_probs


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e-6])
def test_a_log_prob_that_cannot_be_is_refused(value: float) -> None:
    with pytest.raises(EngineProtocolError, match="log prob"):
        decode_chunk(response([1, 2], [-0.5, value]), final=False, vocab_size=10)


@pytest.mark.parametrize("token", [-1, 10])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(EngineProtocolError, match="vocabulary of 10"):
        decode_chunk(response([1, token], [-0.5, -0.5]), final=False, vocab_size=10)


@pytest.mark.parametrize("name", GENERATE_OUTPUTS)
def test_a_missing_output_is_refused_by_name(name: str) -> None:
    outputs = response([1], [-0.5])
    del outputs[name]
    with pytest.raises(EngineProtocolError, match=name):
        decode_chunk(outputs, final=True, vocab_size=10)


@given(st.sampled_from(GENERATE_OUTPUTS), st.binary(max_size=16), st.sampled_from(["INT32", "FP32", "BYTES", "UINT64"]))
def test_only_protocol_errors_escape_from_malformed_outputs(name: str, data: bytes, dtype: str) -> None:
    outputs = response([1, 2], [-0.5, -0.25])
    outputs[name] = WireTensor(name, dtype, (1, 1), data)
    try:
        chunk = decode_chunk(outputs, final=True, vocab_size=10)
    except EngineProtocolError:
        return
    assert len(chunk.ids) == len(chunk.log_probs) == 2


def test_an_unknown_finish_reason_is_refused() -> None:
    outputs = response([1], [-0.5]) | {"finish_reason": text_tensor("finish_reason", b"bored")}
    with pytest.raises(EngineProtocolError, match="bored"):
        decode_chunk(outputs, final=True, vocab_size=10)


def test_an_output_of_another_dtype_is_refused() -> None:
    outputs = response([1], [-0.5])
    outputs["output_ids"] = outputs["output_ids"]._replace(dtype="INT64")
    with pytest.raises(EngineProtocolError, match="output_ids is INT64, not INT32"):
        decode_chunk(outputs, final=True, vocab_size=10)


def test_a_control_request_carries_its_json_and_dummies() -> None:
    tensors = {sent.name: sent for sent in encode_control({"op": "update_weights", "version": 4})}
    required = {spec.name for spec in INPUTS if not spec.optional}
    assert tensors.keys() == required | {"control"}
    data = tensors["control"].data
    assert int.from_bytes(data[:4], "little") == len(data) - 4
    assert json.loads(data[4:]) == {"op": "update_weights", "version": 4}


def test_a_control_reply() -> None:
    outputs = {"control_reply": text_tensor("control_reply", b'{"op": "stats", "live": 2}')}
    assert decode_control_reply(outputs) == {"op": "stats", "live": 2}


@pytest.mark.parametrize("reply", [b"", b"[]", b"{", b"\xff"])
def test_a_control_reply_that_is_no_object_is_refused(reply: bytes) -> None:
    with pytest.raises(EngineProtocolError, match="control_reply"):
        decode_control_reply({"control_reply": text_tensor("control_reply", reply)})


def test_the_document_is_plain_json_of_the_whole_table() -> None:
    document = json.loads(json.dumps(contract_document()))
    assert [spec["name"] for spec in document["inputs"]] == [spec.name for spec in INPUTS]
    assert [spec["name"] for spec in document["outputs"]] == [spec.name for spec in OUTPUTS]
    assert document["inputs"][0] == {"name": "input_ids", "dtype": "INT32", "dims": [-1], "optional": False}
