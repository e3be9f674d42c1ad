"""A response that is read by the places of an earlier one is what protobuf makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineFailed, EngineProtocolError
from engine.response import LAYOUTS, Response, Responses
from tests.engine.fake_triton import answer, failure

REQUEST = SimpleNamespace(model_name="tensorrt_llm", id="turn-1")


def wire(ids: list[int], **how: Any) -> bytes:
    return bytes(answer(REQUEST, ids, **how).SerializeToString())


def read(reader: Responses, data: bytes) -> Response:
    return reader.read(data, sampled=True)


def fresh(data: bytes) -> Response:
    return read(Responses("turn-1"), data)


answers = st.tuples(
    st.lists(st.integers(0, 2**31 - 1), max_size=40), st.booleans(), st.sampled_from([-0.5, -1e-9, -3e38, 0.0])
)


@given(st.lists(answers, min_size=1, max_size=30))
def test_a_stream_of_any_responses(sent: list[tuple[list[int], bool, float]]) -> None:
    reader = Responses("turn-1")
    for ids, final, log_prob in sent:
        data = wire(ids, final=final, log_prob=log_prob)
        assert read(reader, data) == fresh(data)


@given(st.data())
def test_a_response_that_is_not_laid_out_like_the_last_is_parsed(data: st.DataObject) -> None:
    """Any byte of it may be another one: what protobuf and the checks say of it counts."""
    reader, good = Responses("turn-1"), wire([1, 2, 3, 4])
    read(reader, good)
    at, byte = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 255))
    other = good[:at] + bytes([byte]) + good[at + 1 :]
    try:
        expected: Response | str = fresh(other)
    except (EngineFailed, EngineProtocolError) as error:
        expected = str(error)
    try:
        found: Response | str = read(reader, other)
    except (EngineFailed, EngineProtocolError) as error:
        found = str(error)
    assert found == expected


def test_the_second_of_a_size_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Responses("turn-1")
    read(reader, wire([1, 2]))
    monkeypatch.delattr(Responses, "_parsed")
    assert read(reader, wire([3, 4])).outputs["output_ids"].data == b"\3\0\0\0\4\0\0\0"


def test_a_stream_of_ever_new_sizes_is_not_remembered_for_ever() -> None:
    reader = Responses("turn-1")
    for count in range(3 * LAYOUTS):
        read(reader, wire([7] * count))
    assert len(reader._layouts) == LAYOUTS


def test_the_answer_to_another_request_is_an_error() -> None:
    reader = Responses("turn-1")
    read(reader, wire([1]))
    other = answer(SimpleNamespace(model_name="tensorrt_llm", id="turn-2"), [1]).SerializeToString()
    with pytest.raises(EngineProtocolError, match="names the request 'turn-2'"):
        read(reader, other)


def test_a_failure_is_one_between_responses_too() -> None:
    reader = Responses("turn-1")
    read(reader, wire([1]))
    with pytest.raises(EngineFailed, match="the generation broke off: boom"):
        read(reader, failure("boom").SerializeToString())
