"""A request read on from a known beginning is the request read as a whole."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import BadRequest
from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.history import CannotGoOn
from adapter.protocols.known import KnownBeginning, KnownBeginnings, beginning_of
from adapter.replies import digest
from adapter.types import ChatRequest

PROTOCOL = AnthropicMessages()

TEXTS = st.text(st.sampled_from('ab"\\{}[],:é👩\n '), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([1.0, 0.5, 1e22]) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
WRITERS = (
    orjson.dumps,
    lambda value: json.dumps(value).encode(),
    lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of a user, of tools and of a model, as clients write them; sometimes with system messages in between."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": draw(TEXTS) or "x"}]
    for turn in range(draw(st.integers(1, 5))):
        calls = [{"type": "tool_use", "id": f"c{turn}.{n}", "name": "t", "input": draw(st.dictionaries(TEXTS, JSON, max_size=2))}
                 for n in range(draw(st.integers(0, 2)))]  # fmt: skip
        messages.append({"role": "assistant", "content": [{"type": "text", "text": draw(TEXTS)}, *calls]})
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": draw(TEXTS)} for call in calls]
        for block in draw(st.permutations(results)) if draw(st.booleans()) else ():
            messages.append({"role": "user", "content": [block]})
        rest = [] if messages[-1]["role"] == "user" else results
        messages.append({"role": "user", "content": [*rest, {"type": "text", "text": draw(TEXTS) or "y"}]})
        if draw(st.integers(0, 9)) == 0:
            messages.append({"role": "system", "content": "note", "clear_at": "next_user_message"})
    return messages


def parsed_on(raw: bytes, known: KnownBeginning) -> tuple[dict[str, Any], ChatRequest] | None:
    body = known.rest(raw, PROTOCOL.history) if known.begins(raw) else None
    if body is None:
        return None
    try:
        return body, PROTOCOL.parse_rest(body, known.checkpoint)
    except CannotGoOn:
        return None


def known_after(raw: bytes, known: KnownBeginning | None = None) -> KnownBeginning | None:
    """What a request makes known, read as a server reads it."""
    body, chat = orjson.loads(raw), None
    if known is not None:
        found = parsed_on(raw, known)
        assert found is not None
        body, chat = found
    chat = chat or PROTOCOL.parse_rest(body, None)
    return None if chat.checkpoint is None else beginning_of(raw, body["messages"], chat.checkpoint, known)


def same(left: ChatRequest, right: ChatRequest) -> None:
    """Equal, and written alike; ``left`` was read on."""
    plain = [dataclasses.asdict(dataclasses.replace(one, checkpoint=None)) for one in (left, right)]
    assert repr(plain[0]) == repr(plain[1])
    if left.checkpoint is not None:  # a reply is new
        assert left.checkpoint == right.checkpoint


@given(
    conversations(),
    st.sampled_from(WRITERS),
    st.booleans(),
    st.sampled_from(["", "Be brief.", "x-anthropic-billing-header: abc\nBe brief."]),
)
def test_the_request_is_the_same(messages: list[dict[str, Any]], write: Any, tools_first: bool, system: str) -> None:
    def body(count: int) -> bytes:
        head = {"model": "m", "system": system, "tools": [{"name": "t", "input_schema": {"type": "object"}}]}
        tail = {"messages": messages[:count]}
        return bytes(write({**head, **tail} if tools_first else {**tail, **head}))

    known: KnownBeginning | None = None
    for count in range(1, len(messages) + 1):
        raw = body(count)
        try:
            whole = PROTOCOL.parse_request(orjson.loads(raw))
        except BadRequest:
            assert known is None or count > known.checkpoint.count
            continue
        found = None if known is None else parsed_on(raw, known)
        if found is not None:
            same(found[1], whole)
            assert digest(found[0], "messages", known) == digest(orjson.loads(raw))
            known = known_after(raw, known) or known
        else:
            known = known_after(raw) or known


def agent(turns: int, **more: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for turn in range(turns):
        call = {"type": "tool_use", "id": f"c{turn}", "name": "t", "input": {"b": 1, "a": 1.0}}
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{turn}", "content": f"r{turn}"}]},
        ]
    return {"model": "m", "max_tokens": 9, "messages": messages, **more}


def test_an_agents_next_request_is_read_from_its_last_reply_on() -> None:
    known = None
    for turns in range(1, 6):
        raw = orjson.dumps(agent(turns, tools=[{"name": "t", "input_schema": {}}]))
        if known is not None:
            found = parsed_on(raw, known)
            assert found is not None
            assert len(found[0]["messages"]) == 3
        known = known_after(raw, known)
        assert known is not None
        assert known.checkpoint.count == 2 * turns


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b'"go"', b'"no"'),  # an edit
        lambda raw: raw.replace(b'"a":1.0', b'"a":1'),  # equal in Python, another text
        lambda raw: raw.replace(b'"max_tokens":9', b'"max_tokens":19'),
        lambda raw: raw[:40],
    ],
)
def test_other_bytes_are_not_known(change: Any) -> None:
    known = known_after(orjson.dumps(agent(2)))
    raw = orjson.dumps(agent(3))
    assert known is not None
    assert known.begins(raw)
    assert not known.begins(change(raw))


def test_what_goes_on_otherwise_is_read_as_a_whole() -> None:
    raw = orjson.dumps(agent(2))
    known = known_after(raw)
    assert known is not None
    start = raw[: known.size]
    assert known.rest(start + b"]}", "messages") is None  # nothing new
    assert known.rest(start + b'x"]}', "messages") is None  # no JSON
    assert known.rest(start + b',{}],"messages":[{},{}]}', "messages") is None  # the last member of a name counts
    assert known.rest(start + b",{}]}", "messages") == {"model": "m", "max_tokens": 9, "messages": [{}]}


def test_deferred_tools_are_read_with_the_whole() -> None:
    """What a tool_reference says follows from the tools, which may stand behind the messages."""
    known = known_after(orjson.dumps(agent(2)))
    deferred = [{"name": "t", "input_schema": {}, "defer_loading": True}]
    raw = orjson.dumps(agent(3, tools=deferred))
    assert known is not None
    assert known.begins(raw)
    assert parsed_on(raw, known) is None
    assert known_after(raw) is None


def test_a_session_knows_the_latest_conversations() -> None:
    beginnings = KnownBeginnings()
    raws = [orjson.dumps(agent(1, model=str(number))) for number in range(6)]
    for raw in raws:
        known = known_after(raw)
        assert known is not None
        beginnings.add(known, None)
    assert [beginnings.find(raw) is not None for raw in raws] == [False, False, True, True, True, True]
    older = beginnings.find(raws[5])
    newer = known_after(orjson.dumps(agent(2, model="5")), None)
    assert newer is not None
    beginnings.add(newer, older)
    assert beginnings.find(raws[5]) is None
    assert beginnings.find(raws[2]) is not None
