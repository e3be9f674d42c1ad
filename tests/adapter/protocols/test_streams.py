"""Streams as clients read them: folded by the official SDKs' own accumulators, and the rules that clients depend on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from adapter.errors import BadRequest, UpstreamTimeout
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolUse,
    Usage,
)
from engine.types import FinishReason
from tests.adapter.protocols.cases import CASES, COMPLETE, PROTOCOLS, UNTIMED, Case, streamed, whole
from tests.support.sse import events_of

_ANTHROPIC_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_RESPONSES_EVENTS: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}


def fold_anthropic(raw: bytes) -> dict[str, Any]:
    """The message that the official SDK makes of a stream; each event also passes its type's validation."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for name, data in events_of(raw):
        assert name == data["type"]
        if name == "ping":
            continue
        event = _ANTHROPIC_EVENT.validate_python(data)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return without_none(snapshot.to_dict())


def fold_openai(raw: bytes) -> dict[str, Any]:
    """The completion that the official SDK makes of a stream that reports usage."""
    state = ChatCompletionStreamState()
    for _, data in events_of(raw):
        if data != "[DONE]":
            state.handle_chunk(ChatCompletionChunk.model_validate(data))
    completion = without_none(state.current_completion_snapshot.to_dict())  # the "final" one raises on length
    for call in completion["choices"][0]["message"].get("tool_calls", []):
        del call["index"]  # the accumulator keeps the chunks' index
    return completion


def fold_responses(raw: bytes) -> dict[str, Any]:
    """The response of the last event, which the official SDK accepts, and which says what the items and their deltas said."""
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    items: list[Any] = []
    texts: dict[str, str] = {}
    for name, data in events_of(raw):
        assert name == data["type"]
        state.handle_event(_RESPONSES_EVENTS[name].model_validate(data))
        if name.endswith(".delta"):
            texts[data["item_id"]] = texts.get(data["item_id"], "") + data["delta"]
        elif name == "response.output_item.done":
            assert data["output_index"] == len(items)
            items.append(data["item"])
    response: dict[str, Any] = data["response"]
    assert response["output"] == items
    assert {item["id"]: texts.pop(item["id"], "") for item in items} == {item["id"]: item_text(item) for item in items}
    assert not texts
    return without_none(Response.model_validate(response).to_dict())


def item_text(item: dict[str, Any]) -> str:
    """What the deltas of an item amount to."""
    match item["type"]:
        case "message":
            (part,) = item["content"]
        case "reasoning":
            (part,) = item["summary"]
        case "custom_tool_call":
            return str(item["input"])
        case _:
            return str(item["arguments"])
    return str(part["text"])


def fold_gemini(raw: bytes) -> dict[str, Any]:
    """The reply that the chunks of a stream amount to; each also passes its type's validation. Texts of a kind are joined."""
    chunks = [data for _, data in events_of(raw)]
    parts: list[dict[str, Any]] = []
    for chunk in chunks:
        GenerateContentResponse.model_validate(chunk)
        (candidate,) = chunk["candidates"]
        assert candidate["content"]["parts"], "the SDKs' chats take no content without parts"
        for part in candidate["content"]["parts"]:
            last = parts[-1] if parts else {}
            if is_more_text(last, part):
                last["text"] += part["text"]
            elif part != {"text": ""}:
                parts.append(part)
    chunks[-1]["candidates"][0]["content"]["parts"] = parts
    return body_gemini(json.dumps(chunks[-1]).encode())


def is_more_text(last: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether ``part`` is a text that only goes on from ``last``, of the same kind."""
    return "text" in last and part.keys() <= {"text", "thought"} and last.get("thought") == part.get("thought")


def body_anthropic(raw: bytes) -> dict[str, Any]:
    return without_none(Message.model_validate_json(raw).to_dict())


def body_openai(raw: bytes) -> dict[str, Any]:
    return without_none(ChatCompletion.model_validate_json(raw).to_dict())


def body_responses(raw: bytes) -> dict[str, Any]:
    return without_none(Response.model_validate_json(raw).to_dict())


def body_gemini(raw: bytes) -> dict[str, Any]:
    return GenerateContentResponse.model_validate_json(raw).to_json_dict()


FOLDS: dict[str, tuple[Callable[[bytes], dict[str, Any]], Callable[[bytes], dict[str, Any]]]] = {
    "anthropic": (fold_anthropic, body_anthropic),
    "openai_chat": (fold_openai, body_openai),
    "openai_responses": (fold_responses, body_responses),
    "gemini": (fold_gemini, body_gemini),
}


def without_none(value: Any) -> Any:
    """The SDKs' models differ in which absent members they write as null."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value


@pytest.mark.parametrize("case", [name for name in COMPLETE if CASES[name].include_usage])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_sdk_folds_the_stream_to_the_whole_body(protocol: str, case: str) -> None:
    fold, body = FOLDS[protocol]
    assert fold(streamed(PROTOCOLS[protocol], CASES[case])) == body(whole(PROTOCOLS[protocol], CASES[case]))


TEXT = st.text(max_size=12)
ARGUMENTS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT, max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> Case:
    """A reply in the order reasoning, text, calls, cut into fragments at random places and grouped into batches at random."""
    reasoning, text = draw(TEXT), draw(TEXT)
    uses = tuple(
        ToolUse(name, use) for name, use in draw(st.lists(st.tuples(st.text("ab_", min_size=1), ARGUMENTS), max_size=3))
    )
    events: list[ReplyEvent] = [ReasoningDelta(piece) for piece in cut(draw, reasoning)]
    events += [TextDelta(piece) for piece in cut(draw, text)]
    for use in uses:
        pieces = cut(draw, json.dumps(use.input, separators=(",", ":"), ensure_ascii=False))
        events += [ToolCallStart(use.name), *(ToolCallDelta(piece) for piece in pieces), ToolCallEnd(use)]
    batches = tuple((event,) for event in events) if draw(st.booleans()) else (tuple(events),)
    input_tokens = draw(st.integers(1, 5000))
    usage = Usage(
        input_tokens, draw(st.integers(0, 99)), draw(st.integers(0, input_tokens - 1)), draw(st.integers(0, 9))
    )
    reason = draw(st.sampled_from((FinishReason.STOP, FinishReason.LENGTH)))
    return Case(batches, ParsedModelOutput(reasoning, text, uses), usage, reason)


def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@UNTIMED
@given(case=replies())
def test_any_reply_folds_to_its_whole_body(protocol: str, case: Case) -> None:
    fold, body = FOLDS[protocol]
    assert fold(streamed(PROTOCOLS[protocol], case)) == body(whole(PROTOCOLS[protocol], case))


def test_anthropic_stream_begins_and_ends_as_clients_require() -> None:
    events = events_of(streamed(PROTOCOLS["anthropic"], CASES["text"]))
    names = [name for name, _ in events]
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == "这是一个学习项目。<|im_end|>"
    assert events[0][1]["message"]["usage"] == {"input_tokens": 218, "output_tokens": 0}


def test_chat_stream_begins_and_ends_as_clients_require() -> None:
    events = [data for _, data in events_of(streamed(PROTOCOLS["openai_chat"], CASES["no_usage"]))]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in event for event in events[:-1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("batches", range(5))
def test_a_failed_stream_never_looks_complete(protocol: str, batches: int) -> None:
    case = CASES["thinking_text_tools"]
    failed = Case(case.batches[:batches], case.parsed, case.usage, error=UpstreamTimeout("the engine is silent"))
    raw = streamed(PROTOCOLS[protocol], failed)
    for sign in (
        b"message_delta", b"message_stop", b"[DONE]", b'"finish_reason":"', b"response.completed", b"response.incomplete",
        b"finishReason",
    ):  # fmt: skip
        assert sign not in raw
    last = events_of(raw)[-1][1]
    assert last.get("response", last)["error"]["message"] == "the engine is silent"


def test_anthropic_text_after_a_call_is_a_block_of_its_own() -> None:
    use = ToolUse("now", {})
    case = Case(
        batches=(
            (TextDelta("lead "), ToolCallStart("now"), ToolCallDelta("{}"), ToolCallEnd(use), TextDelta(" tail")),
        ),
        parsed=ParsedModelOutput(text="lead  tail", tool_uses=(use,)),
        usage=Usage(3, 4),
    )
    blocks = fold_anthropic(streamed(PROTOCOLS["anthropic"], case))["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "text"]
    assert blocks[0]["text"] + blocks[2]["text"] == case.parsed.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arguments_that_were_not_streamed_arrive_with_the_end(protocol: str) -> None:
    use = ToolUse("read", {"path": "a"})
    case = Case(((ToolCallStart("read"), ToolCallEnd(use)),), ParsedModelOutput(tool_uses=(use,)), Usage(3, 4))
    fold, body = FOLDS[protocol]
    assert fold(streamed(PROTOCOLS[protocol], case)) == body(whole(PROTOCOLS[protocol], case))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arguments_beyond_orjsons_range_still_reach_the_client(protocol: str) -> None:
    use = ToolUse("add", {"n": 10**30, "half": "\ud83d"})
    case = Case(((ToolCallStart("add"), ToolCallEnd(use)),), ParsedModelOutput(tool_uses=(use,)), Usage(3, 4))
    raw = streamed(PROTOCOLS[protocol], case)
    assert str(10**30).encode() in raw
    assert rb"\ud83d" in raw


def test_error_events_name_the_field() -> None:
    error = BadRequest("must be a string, not null", field="messages.0.content")
    anthropic = PROTOCOLS["anthropic"].render_error(error)
    assert anthropic["error"]["message"] == "messages.0.content: must be a string, not null"
