"""The console's events and bodies: golden wire, streams folded to the whole reply, whatever a client sends."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import UpstreamTimeout
from adapter.ids import IdSource
from adapter.protocols.console import ConsoleChat
from adapter.protocols.seed_events import SeedEvents, ToolResult
from adapter.types import TextDelta
from tests.adapter.protocols.cases import CASES, COMPLETE, GOLDEN, UNTIMED, Case, streamed, whole
from tests.adapter.protocols.test_bad_bodies import JSON, parse_or_bad_request, places
from tests.adapter.protocols.test_streams import replies
from tests.support.sse import data_objects

CONSOLE = ConsoleChat()
BODY: dict[str, Any] = {
    "input": [
        {"role": "system", "content": "sys"},
        {"content": [{"text": "hi"}, {"type": "text", "text": "there"}]},
        {"type": "plugin_call_output", "content": [{"type": "data", "data": {"call_id": "c", "output": "r"}}]},
    ],
    "session_id": "s",
    "user_id": "u",
    "channel": "console",
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "temperature": 1,
    "max_tokens": 32,
    "stop": ["x"],
    "request_context": {"project_dir": "/tmp"},
}


def fold(raw: bytes) -> list[tuple[str, str, Any]]:
    """``(type, status, content)`` of each message, as a page puts it together; deltas are joined."""
    first, *events = data_objects(raw)
    assert first == {"object": "response", "status": "created"}
    messages: list[list[Any]] = []
    for event in events[:-1]:
        if event["object"] == "content":
            messages[-1][2] = event["data"] if event["type"] == "data" else messages[-1][2] + event["delta"]
        elif event["status"] == "completed":
            messages[-1][1] = "completed"
        else:
            messages.append([event["type"], event["status"], ""])
    assert events[-1] == {"object": "response", "status": "completed"}
    return [(kind, status, content) for kind, status, content in messages]


def body_messages(raw: bytes) -> list[tuple[str, str, Any]]:
    (body,) = data_objects(b"data: " + raw + b"\n\n")
    return [
        (message["type"], message["status"], content.get("text", content.get("data")))
        for message in body["output"]
        for content in message["content"]
    ]


@pytest.mark.parametrize("case", CASES)
def test_streamed_reply_is_the_golden_stream(case: str) -> None:
    assert streamed(CONSOLE, CASES[case]) == (GOLDEN / "console" / f"{case}.sse").read_bytes()


@pytest.mark.parametrize("case", COMPLETE)
def test_whole_reply_is_the_golden_body(case: str) -> None:
    assert whole(CONSOLE, CASES[case]) + b"\n" == (GOLDEN / "console" / f"{case}.json").read_bytes()


@UNTIMED
@given(case=replies())
def test_any_stream_folds_to_its_whole_body(case: Case) -> None:
    assert fold(streamed(CONSOLE, case)) == body_messages(whole(CONSOLE, case))


@pytest.mark.parametrize("batches", range(5))
def test_a_failed_stream_never_looks_complete(batches: int) -> None:
    case = CASES["thinking_text_tools"]
    failed = Case(case.batches[:batches], case.parsed, case.usage, error=UpstreamTimeout("the engine is silent"))
    events = data_objects(streamed(CONSOLE, failed))
    assert events[-1] == {
        "object": "response",
        "status": "failed",
        "error": {"code": "upstream_timeout", "message": "the engine is silent"},
    }
    assert {"object": "response", "status": "completed"} not in events


def test_every_event_has_what_is_to_be_in_every_event() -> None:
    events = SeedEvents(lambda: "c", {"turn": 3})
    raw = events.start() + events.results([ToolResult("r", "look", "c")]) + events.events([TextDelta("x")])
    raw += events.finish()
    assert {event["turn"] for event in data_objects(raw)} == {3}
    assert data_objects(raw)[2]["data"] == {"call_id": "c", "name": "look", "output": "r"}


def test_a_request() -> None:
    request = CONSOLE.parse_request(BODY)
    assert request.messages == (
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "hi\nthere"},
        {"role": "tool", "content": "r"},
    )
    assert request.handles == ((), (), ("c",))
    assert request.stream
    assert (request.max_tokens, request.stop, request.sampling) == (32, ("x",), {"temperature": 1.0})
    assert request.tools[0]["function"]["name"] == "look"
    assert request.unused_fields == ("user_id", "channel", "request_context")
    assert CONSOLE.body_session(BODY) == "s"


@UNTIMED
@given(body=JSON)
def test_any_json_is_parsed_or_refused_by_name(body: Any) -> None:
    parse_or_bad_request(CONSOLE, body)


@UNTIMED
@given(data=st.data())
def test_a_valid_body_with_anything_in_it_is_parsed_or_refused_by_name(data: st.DataObject) -> None:
    body = copy.deepcopy(BODY)
    holder, key = data.draw(st.sampled_from(places(body)))
    holder[key] = data.draw(JSON)
    parse_or_bad_request(CONSOLE, body)


def test_call_ids_come_from_the_turn() -> None:
    class One:
        def new(self, prefix: str, length: int) -> str:
            return f"{prefix}of-the-turn"

    ids: IdSource = One()
    reply = CONSOLE.reply(CASES["tool_without_arguments"].parsed, CASES["tool_without_arguments"].reason, ids)
    assert reply.wire[0]["content"][0]["data"]["call_id"] == "call_of-the-turn"
