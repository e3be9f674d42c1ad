"""The ids that replies carry come back with the history, each at its message; and no reply asks for an id that it does not send."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from adapter.handles import Handle, Handles, TurnIds
from adapter.protocols.base import WireProtocol
from adapter.types import ChatRequest
from tests.adapter.protocols.cases import CASES, COMPLETE, PROTOCOLS, NumberedIds, streamed, whole

HI = {"role": "user", "content": "hi"}


class CountedIds(TurnIds):
    """Keeps what it gave."""

    def __init__(self, handles: Handles) -> None:
        super().__init__(handles, "s", 7)
        self.given: list[str] = []

    def new(self, prefix: str, length: int) -> str:
        self.given.append(super().new(prefix, length))
        return self.given[-1]


def replayed(protocol: str, case: str, ids: Any) -> list[dict[str, Any]]:
    """The reply of ``case`` as the next request replays it."""
    reply = PROTOCOLS[protocol].reply(CASES[case].parsed, CASES[case].reason, ids)
    if protocol == "openai_responses":
        return list(reply.wire[2])
    body: Any = reply.wire[0]
    if protocol == "gemini":
        return [{"role": "model", "parts": body}]
    return [body if protocol == "openai_chat" else {"role": "assistant", "content": body}]


def parsed(protocol: str, *messages: dict[str, Any], **members: Any) -> ChatRequest:
    history = "input" if protocol == "openai_responses" else "messages"
    if protocol == "gemini":
        messages = tuple({"parts": [{"text": "hi"}]} if message is HI else message for message in messages)
        history = "contents"
    return PROTOCOLS[protocol].parse_request({history: list(messages), **members})


@pytest.mark.parametrize("case", COMPLETE)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_reply_carries_comes_back_at_its_message(protocol: str, case: str) -> None:
    handles = Handles()
    ids = CountedIds(handles)
    request = parsed(protocol, HI, *replayed(protocol, case, ids), HI)
    assert request.handles == (((), tuple(ids.given), ()) if ids.given else ())
    turns = [handles.read("s", issued) for message in request.handles for issued in message]
    assert turns == [Handle(7, number + 1) for number in range(len(ids.given))]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_id_that_a_reply_asks_for_is_on_the_wire(
    protocol: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    new = NumberedIds.new

    def noted(self: NumberedIds, prefix: str, length: int) -> str:
        given.append(new(self, prefix, length))
        return given[-1]

    monkeypatch.setattr(NumberedIds, "new", noted)
    for render in (streamed, whole):
        given.clear()
        wire = render(PROTOCOLS[protocol], CASES[case])
        assert given
        assert all(orjson.dumps(issued) in wire for issued in given)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ids_are_short(protocol: str) -> None:
    ids = CountedIds(Handles())
    replayed(protocol, "thinking_text_tools", ids)
    assert ids.given
    assert all(len(issued) <= 40 for issued in ids.given)


def test_a_streams_signature_is_a_handle_and_comes_before_its_calls() -> None:
    protocol: WireProtocol = PROTOCOLS["anthropic"]
    ids = CountedIds(Handles())
    stream = protocol.stream(ChatRequest(messages=(), stream=True), reply_id="r", model="m", ids=ids, created=0)
    wire = stream.start(1) + b"".join(stream.events(batch) for batch in CASES["thinking_text_tools"].batches)
    places = [wire.index(orjson.dumps(issued)) for issued in ids.given]
    assert len(places) == 3
    assert places == sorted(places)


def test_folded_system_entries_and_results_leave_handles_at_their_messages() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    thought = {"type": "thinking", "thinking": "", "signature": "s1"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r"}]}
    entry = {"role": "system", "content": "X"}
    request = parsed("anthropic", HI, {"role": "assistant", "content": [thought, call]}, result, entry, system="sys")
    assert request.handles == ((), (), ("s1", "t1"), (), ())


def test_a_thinking_block_without_signature_has_no_handle() -> None:
    thought = {"type": "thinking", "thinking": "plan"}
    assert parsed("anthropic", HI, {"role": "assistant", "content": [thought]}, HI).handles == ()
