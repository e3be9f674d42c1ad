"""OpenAI Responses replies that depend on their request: custom and namespace tools, what is repeated; and the stream's order."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import AdapterError, BadRequest, Interrupted, PromptTooLong, TooManyRequests, UpstreamFailed
from adapter.ids import RandomIds
from adapter.protocols.openai_responses import OpenAIResponses
from adapter.protocols.openai_responses_reply import new_response_id, session_of_response
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
from tests.adapter.protocols.cases import CREATED, GOLDEN, MODEL, NumberedIds
from tests.adapter.protocols.test_streams import body_responses, fold_responses
from tests.support.sse import events_of

PROTOCOL = OpenAIResponses()
SPAWN = {"type": "function", "name": "spawn_agent", "strict": False, "parameters": {"type": "object"}}
BODY: dict[str, Any] = {
    "model": MODEL,
    "instructions": "Be brief.",
    "input": "hi",
    "tools": [
        {"type": "namespace", "name": "multi_agent_v1", "description": "Agents", "tools": [SPAWN]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
        {"type": "web_search"},
    ],
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"verbosity": "low"},
    "metadata": {"run": "7"},
    "max_output_tokens": 99,
    "temperature": 0.5,
    "store": False,
    "prompt_cache_key": "k",
}  # fmt: skip
SPAWNED = ToolUse("multi_agent_v1__spawn_agent", {"prompt": "look"})
PATCHED = ToolUse("apply_patch", {"input": '*** Begin\n+ "é"\n*** End'})
PARSED = ParsedModelOutput(reasoning="Hm.", text="On it.", tool_uses=(SPAWNED, PATCHED))
EVENTS: tuple[tuple[ReplyEvent, ...], ...] = (
    (ReasoningDelta("Hm."), TextDelta("On it.")),
    (ToolCallStart(SPAWNED.name), ToolCallDelta('{"prompt":'), ToolCallDelta('"look"}'), ToolCallEnd(SPAWNED)),
    (ToolCallStart(PATCHED.name), ToolCallDelta('{"input":"*** Begin\\n+ '), ToolCallDelta('\\"é\\"\\n*** End"}')),
    (ToolCallEnd(PATCHED),),
)
USAGE = Usage(200, 40, cached_tokens=128, reasoning_tokens=5)


def streamed(*batches: tuple[ReplyEvent, ...]) -> bytes:
    ids = NumberedIds()
    request = PROTOCOL.parse_request(BODY)
    stream = PROTOCOL.stream(request, reply_id=PROTOCOL.new_reply_id(ids), model=MODEL, ids=ids, created=CREATED)
    frames = [stream.start(USAGE.input_tokens), *(stream.events(batch) for batch in batches)]
    return b"".join([*frames, stream.finish(PARSED, FinishReason.STOP, USAGE)])


def whole(parsed: ParsedModelOutput = PARSED) -> bytes:
    ids = NumberedIds()
    reply_id = PROTOCOL.new_reply_id(ids)
    reply = PROTOCOL.reply(parsed, FinishReason.STOP, ids, PROTOCOL.parse_request(BODY))
    return orjson.dumps(PROTOCOL.render_body(reply, reply_id=reply_id, model=MODEL, usage=USAGE, created=CREATED))


def test_the_wire_byte_for_byte() -> None:
    assert whole() + b"\n" == (GOLDEN / "openai_responses_tools" / "tools.json").read_bytes()
    assert streamed(*EVENTS) == (GOLDEN / "openai_responses_tools" / "tools.sse").read_bytes()


def test_the_sdk_folds_the_stream_to_the_whole_body() -> None:
    assert fold_responses(streamed(*EVENTS)) == body_responses(whole())


def test_calls_come_back_in_the_clients_terms() -> None:
    spawn, patch = orjson.loads(whole())["output"][2:]
    assert (spawn["type"], spawn["namespace"], spawn["name"]) == ("function_call", "multi_agent_v1", "spawn_agent")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", PATCHED.input["input"])


INPUT = '*** "é" \\ \n\t\u2028 😀 </x>'


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize(("step", "least"), [(1, 20), (2, 10), (3, 7), (7, 4), (1000, 1)])
@pytest.mark.parametrize("head", ['{"input":', ' {\n "input" : '])
def test_a_custom_tools_input_streams_as_it_is_written(head: str, step: int, least: int, escaped: bool) -> None:
    arguments = head + json.dumps(INPUT, ensure_ascii=escaped) + "}"
    pieces = [arguments[start : start + step] for start in range(0, len(arguments), step)]
    use = ToolUse("apply_patch", {"input": INPUT})
    call = (ToolCallStart(use.name), *map(ToolCallDelta, pieces), ToolCallEnd(use))
    raw = streamed(*((event,) for event in call))
    assert fold_responses(raw)["output"][0]["input"] == INPUT
    assert raw.count(b"event: response.custom_tool_call_input.delta") >= least


def test_half_a_character_reaches_the_client_as_it_is() -> None:
    use = ToolUse("apply_patch", {"input": "x\udc00"})
    raw = streamed((ToolCallStart(use.name), ToolCallDelta('{"input":"x\\udc00"}'), ToolCallEnd(use)))
    assert rb'"input":"x\udc00"' in raw
    assert rb'"delta":"x\udc00"' in raw


def test_a_custom_call_that_broke_off_is_not_what_was_streamed_of_it() -> None:
    use = ToolUse("apply_patch", {"input": None})
    pieces = ('{"input":"*** Be', '","input":null}')
    events = events_of(streamed((ToolCallStart(use.name), *map(ToolCallDelta, pieces), ToolCallEnd(use))))
    assert [data["delta"] for name, data in events if name.endswith(".delta")] == ["*** Be"]
    assert events[-1][1]["response"]["output"][0]["input"] == '{"input":null}'


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"input": ""}, ""), ({"input": None}, '{"input":null}'), ({"patch": "x"}, '{"patch":"x"}'), ({}, "{}")],
)
def test_a_custom_tool_always_gets_a_text(arguments: dict[str, Any], text: str) -> None:
    use = ToolUse("apply_patch", arguments)
    (item,) = orjson.loads(whole(ParsedModelOutput(tool_uses=(use,))))["output"]
    assert item["input"] == text
    call = (ToolCallStart(use.name), ToolCallDelta(orjson.dumps(arguments).decode()), ToolCallEnd(use))
    assert fold_responses(streamed(call))["output"][0]["input"] == text


def test_a_tool_that_the_model_made_up_is_a_function() -> None:
    (item,) = orjson.loads(whole(ParsedModelOutput(tool_uses=(ToolUse("other__tool", {}),))))["output"]
    assert (item["type"], item["name"]) == ("function_call", "other__tool")
    assert "namespace" not in item


def test_the_response_repeats_its_request() -> None:
    body = orjson.loads(whole())
    for name in (
        "instructions",
        "tools",
        "parallel_tool_calls",
        "metadata",
        "max_output_tokens",
        "temperature",
        "store",
    ):
        assert body[name] == BODY[name]
    assert body["reasoning"] == BODY["reasoning"]
    assert body["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert (body["prompt_cache_key"], body["tool_choice"], body["top_p"]) == ("k", "auto", None)


def test_items_stand_in_the_order_of_the_models_words() -> None:
    call = (ToolCallStart("f"), ToolCallEnd(ToolUse("f", {})))
    events = events_of(streamed((TextDelta("a"), *call, TextDelta("b"), ReasoningDelta("c"), TextDelta("d"))))
    items = events[-1][1]["response"]["output"]
    assert [item["type"] for item in items] == ["message", "function_call", "message", "reasoning", "message"]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))


@pytest.mark.parametrize("count", range(1, len(EVENTS) + 1))
def test_what_is_open_when_a_stream_fails_is_never_done(count: int) -> None:
    ids = NumberedIds()
    stream = PROTOCOL.stream(PROTOCOL.parse_request(BODY), reply_id="r", model=MODEL, ids=ids, created=CREATED)
    raw = stream.start(1) + b"".join(stream.events(batch) for batch in EVENTS[:count])
    raw += stream.error(UpstreamFailed("the engine is gone"))
    events = events_of(raw)
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    name, data = events[-1]
    assert name == "response.failed"
    assert data["response"]["output"] == done
    assert len(done) == (1, 3, 3, 4)[count - 1]


def test_a_stream_that_is_complete_keeps_nothing_of_its_request() -> None:
    request = PROTOCOL.parse_request(BODY)
    stream = PROTOCOL.stream(request, reply_id="r", model=MODEL, ids=NumberedIds(), created=CREATED)
    frames = [stream.start(1), stream.events(EVENTS[0]), stream.finish(PARSED, FinishReason.STOP, USAGE)]
    assert all(b"apply_patch" in frame for frame in (frames[0], frames[2]))
    told = events_of(stream.error(UpstreamFailed("x")))[0][1]["response"]
    assert (told["id"], told["tools"], told["output"]) == ("r", [], [])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UpstreamFailed("x"), "server_error"),
        (AdapterError("x"), "server_error"),
        (TooManyRequests("x"), "rate_limit_exceeded"),
        (BadRequest("x"), "invalid_prompt"),
        (PromptTooLong(9, 8), "context_length_exceeded"),
        (Interrupted("x"), "interrupted"),
    ],
)
def test_the_code_of_a_failure_says_whether_to_try_again(error: AdapterError, code: str) -> None:
    stream = PROTOCOL.stream(PROTOCOL.parse_request(BODY), reply_id="r", model=MODEL, ids=NumberedIds(), created=0)
    stream.start(1)
    (_, data), *_ = events_of(stream.error(error))
    assert data["response"]["error"]["code"] == code


def test_a_prompt_that_is_too_long_is_named_by_its_own_field() -> None:
    error = PROTOCOL.render_error(PromptTooLong(210, 200))["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert error["message"].startswith("This model's maximum context length is 200 tokens.")


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300))
def test_a_responses_id_names_its_session(sid: str) -> None:
    first, second = (new_response_id(RandomIds(), sid) for _ in range(2))
    assert session_of_response(first) == session_of_response(second) == sid
    assert first != second
    assert re.fullmatch(r"resp_[0-9a-f]{24}[A-Za-z0-9_-]+", first)


@given(st.one_of(st.text(max_size=60), st.text(alphabet="resp_0aA-=", max_size=60)))
def test_any_text_names_a_session_or_none(text: str) -> None:
    for response_id in (text, f"resp_{text}", f"resp_{'0' * 24}{text}"):
        sid = session_of_response(response_id)
        assert sid is None or (sid and response_id.startswith("resp_"))
