"""OpenAI Responses over HTTP, read by the official SDK: turns, and what is kept of them on the server."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import orjson
import pydantic
import pytest

from adapter import responses as stored
from engine.errors import EngineTimeout
from engine.types import FinishReason, GuideKind
from tests.adapter.http.conftest import Serve
from tests.support.engine import INFO, Answer, FakeEngine
from tests.support.server import TestServer
from tests.support.sse import events_of
from tests.support.wait import until

PATH = "/v1/responses"
END = 151645
M = "slime-actor"
SID = {"Authorization": "Bearer sid"}
GUIDING = dataclasses.replace(INFO, guides=frozenset({GuideKind.JSON_SCHEMA, GuideKind.LARK}))
LOOKUP = {
    "type": "function",
    "name": "lookup",
    "strict": False,
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
CALL = "<tool_call><function={name}><parameter=query>slime</parameter></function></tool_call>"


@asynccontextmanager
async def sdk(server: TestServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sid", max_retries=0) as client:
        yield client


@pytest.fixture
def says(encode):
    """The answer of an engine that says a text, in one piece or token by token."""

    def answer(text: str, *, by_token: bool = False, **more: Any) -> Answer:
        ids = [*encode(text), END]
        return Answer([[token] for token in ids] if by_token else [ids], **more)

    return answer


async def reasons(server: TestServer, sid: str = "sid") -> list[str]:
    async with server.http.get(f"/v1/sessions/{sid}/explain") as response:
        return [turn["reason"] for turn in (await response.json())["turns"]]


async def test_a_tool_loop_that_replays_its_items(serve: Serve, says) -> None:
    first = "<think>\nHm.\n</think>\n\nI look." + CALL.format(name="lookup")
    engine = FakeEngine([says(first, by_token=True), says("It is soft.")])
    async with serve(engine, tool_parser="xml", reasoning_parser="think") as server, sdk(server) as client:
        ask: dict[str, Any] = {"model": M, "tools": [LOOKUP]}
        async with client.responses.stream(input="hi", **ask) as stream:
            kinds = [event.type async for event in stream]
            reply = await stream.get_final_response()
        assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
        call = reply.output[2]
        assert (call.name, call.arguments) == ("lookup", '{"query":"slime"}')
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds.count("response.output_text.delta") > 1
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "soft"}
        history = [{"role": "user", "content": "hi"}, *reply.output, result]
        second = await client.responses.create(input=history, **ask)
        assert (second.output_text, second.status) == ("It is soft.", "completed")
        assert second.usage.input_tokens == engine.requests[1].prompt_ids.size
        assert second.usage.output_tokens_details.reasoning_tokens == 0
        assert await reasons(server) == ["new", "exact"]
    known = [*engine.requests[0].prompt_ids, *says(first).chunks[0]]
    assert engine.requests[1].prompt_ids[: len(known)].tolist() == known


async def test_calls_of_a_namespace_and_of_a_custom_tool(serve: Serve, says) -> None:
    patch = (
        '<tool_call><function=apply_patch><parameter=input>*** Begin\n+ "x"\n*** End</parameter></function></tool_call>'
    )
    engine = FakeEngine([says(CALL.format(name="web__lookup") + patch), says("done")])
    tools: list[Any] = [
        {"type": "namespace", "name": "web", "description": "d", "tools": [LOOKUP]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
        {"type": "web_search"},
    ]  # fmt: skip
    async with serve(engine, tool_parser="xml") as server, sdk(server) as client:
        raw = await client.responses.with_raw_response.create(model=M, input="hi", tools=tools)
        assert raw.headers["x-rollserve-unused-fields"] == "tools.format,tools.web_search"
        call, custom = raw.parse().output
        assert (call.type, call.namespace, call.name) == ("function_call", "web", "lookup")
        assert (custom.type, custom.name, custom.input) == (
            "custom_tool_call",
            "apply_patch",
            '*** Begin\n+ "x"\n*** End',
        )
        outputs = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "a"},
            {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": [{"type": "input_text", "text": "b"}]},
        ]  # fmt: skip
        history = [{"role": "user", "content": "hi"}, call, custom, *outputs]
        await client.responses.create(model=M, input=history, tools=tools)
        assert await reasons(server) == ["new", "exact"]


class Weather(pydantic.BaseModel):
    """The weather."""

    city: str
    degrees: int


async def test_the_sdks_own_types_are_asked_for_and_parsed(serve: Serve, says) -> None:
    call = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Paris", "degrees": 21}}\n</tool_call>'
    engine = FakeEngine([says('{"city": "Rome", "degrees": 30}'), says(call, by_token=True)], info=GUIDING)
    async with serve(engine) as server, sdk(server) as client:
        parsed = await client.responses.parse(model=M, input="hi", text_format=Weather)
        assert parsed.output_parsed == Weather(city="Rome", degrees=30)
        tool = openai.pydantic_function_tool(Weather)["function"]
        assert tool["strict"] is True
        tools: Any = [{"type": "function", **tool}]
        async with client.responses.stream(model=M, input="hi", tools=tools, tool_choice="required") as stream:
            final = await stream.get_final_response()
        assert final.output[0].parsed_arguments == {"city": "Paris", "degrees": 21}
    assert all(request.guide is not None for request in engine.requests)


async def test_demands_on_an_engine_without_guides_are_refused_by_their_fields(serve: Serve) -> None:
    async with serve(FakeEngine()) as server, sdk(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.parse(model=M, input="hi", text_format=Weather)
        assert refused.value.param == "text.format"
        strict: Any = {**LOOKUP, "strict": True}
        for demand, field in (({"tool_choice": "required"}, "tool_choice"), ({}, "tools.0.strict")):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model=M, input="hi", tools=[strict], **demand)
            assert refused.value.param == field


async def test_the_synchronous_client(serve: Serve, says) -> None:
    engine = FakeEngine([says("one"), says("two words", by_token=True)])

    def ask(url: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="sid", max_retries=0) as client:
            whole = client.responses.create(model=M, input="hi")
            with client.responses.stream(model=M, input="on", previous_response_id=whole.id) as stream:
                text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
                assert stream.get_final_response().output_text == text
            return whole.output_text, text

    async with serve(engine) as server:
        assert await asyncio.to_thread(ask, server.url) == ("one", "two words")


async def test_a_conversation_kept_on_the_server(serve: Serve, says) -> None:
    engine = FakeEngine([says(CALL.format(name="lookup")), says("soft"), says("bye")])
    async with serve(engine, tool_parser="xml") as server, sdk(server) as client:
        first = await client.responses.create(model=M, input="hi", tools=[LOOKUP])
        result: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "r"}
        second = await client.responses.create(model=M, input=[result], tools=[LOOKUP], previous_response_id=first.id)
        third = await client.responses.create(model=M, input="and?", tools=[LOOKUP], previous_response_id=second.id)
        assert (second.output_text, third.output_text) == ("soft", "bye")
        assert third.previous_response_id == second.id
        assert await reasons(server) == ["new", "exact", "exact"]
        listed = [item async for item in client.responses.input_items.list(third.id, order="asc", limit=2)]
        assert [item.type for item in listed] == [
            "message", "function_call", "function_call_output", "message", "message",
        ]  # fmt: skip
        assert listed[1].id == first.output[0].id
        newest = await client.responses.input_items.list(third.id, limit=1)
        assert newest.data[0].content == "and?"
        assert newest.has_more
        again = await client.responses.retrieve(third.id)
        assert again == third


async def test_input_tokens_are_counted_as_they_would_be_sent(serve: Serve, says) -> None:
    engine = FakeEngine([says("one"), says("two")])
    async with serve(engine) as server, sdk(server) as client:
        alone = await client.responses.input_tokens.count(model=M, input="hi", tools=[LOOKUP])
        assert server.state.sessions.known("sid") is None
        first = await client.responses.create(model=M, input="hi", tools=[LOOKUP])
        more: Any = {"input": "on", "tools": [LOOKUP], "previous_response_id": first.id}
        continued = await client.responses.input_tokens.count(model=M, **more)
        second = await client.responses.create(model=M, **more)
    assert (alone.input_tokens, continued.input_tokens) == (first.usage.input_tokens, second.usage.input_tokens)


async def test_instructions_are_those_of_the_request_alone(serve: Serve, says) -> None:
    engine = FakeEngine([says("one"), says("two")])
    async with serve(engine) as server, sdk(server) as client:
        first = await client.responses.create(model=M, input="hi", instructions="Be brief.")
        second = await client.responses.create(model=M, input="go on", previous_response_id=first.id)
    assert (first.instructions, second.instructions) == ("Be brief.", None)
    prompts = [
        server.state.services.models.default.renderer.decode(request.prompt_ids.tolist()) for request in engine.requests
    ]
    assert "Be brief." in prompts[0]
    assert "Be brief." not in prompts[1]


async def test_a_reference_stands_for_a_stored_item(serve: Serve, says) -> None:
    engine = FakeEngine([says("one"), says("two"), says("two")])
    async with serve(engine, tool_parser="xml") as server, sdk(server) as client:
        first = await client.responses.create(model=M, input="hi")
        reference: Any = {"type": "item_reference", "id": first.output[0].id}
        said: Any = {"role": "user", "content": "hi"}
        await client.responses.create(model=M, input=[said, reference, said])
        bare: Any = {"id": first.output[0].id}
        await client.responses.create(model=M, input=[said, bare, said])
        assert (await reasons(server))[:2] == ["new", "exact"]
        sent = [request.prompt_ids.tolist() for request in engine.requests]
        assert sent[1] == sent[2]
        with pytest.raises(openai.BadRequestError, match=r"input\.1\.id: no stored reply"):
            await client.responses.create(model=M, input=[said, {"type": "item_reference", "id": "msg_other"}])


async def test_what_is_not_stored_is_not_found(serve: Serve, says) -> None:
    engine = FakeEngine([says("one"), says("two")])
    async with serve(engine) as server, sdk(server) as client:
        unstored = await client.responses.create(model=M, input="hi", store=False)
        assert unstored.store is False
        deleted = await client.responses.create(model=M, input="hi")
        await client.responses.delete(deleted.id)
        for response_id in (unstored.id, deleted.id, "resp_other"):
            with pytest.raises(openai.NotFoundError, match=f"Response with id '{response_id}' not found"):
                await client.responses.retrieve(response_id)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model=M, input="x", previous_response_id=response_id)
            assert refused.value.code == "previous_response_not_found"
            assert refused.value.param == "previous_response_id"
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0) as other:
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(deleted.id)
        assert await reasons(server) == ["new", "new"]


async def test_a_stream_is_read_again_from_any_event(serve: Serve, says) -> None:
    engine = FakeEngine([says("a few words of it", by_token=True)])
    async with serve(engine) as server, sdk(server) as client:
        events = [event async for event in await client.responses.create(model=M, input="hi", stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        response_id = events[0].response.id
        for after in (None, 0, 4, len(events) - 2, len(events) - 1):
            more = {} if after is None else {"starting_after": after}
            again = [event async for event in await client.responses.retrieve(response_id, stream=True, **more)]
            assert again == events[0 if after is None else after + 1 :]
        assert await client.responses.retrieve(response_id) == events[-1].response
        for after in ("-7", "--1", "x", "1.5", "٣", "9" * 5000):
            query = {"stream": "true", "starting_after": after}
            async with server.http.get(f"{PATH}/{response_id}", params=query, headers=SID) as response:
                assert (await response.json())["error"]["param"] == "starting_after"
        for limit in ("0", "101"):
            page = f"{PATH}/{response_id}/input_items?limit={limit}"
            async with server.http.get(page, headers=SID) as response:
                assert (await response.json())["error"]["param"] == "limit"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?stream=maybe", "stream"),
        ("?starting_after=3", "starting_after"),
        ("?include[]=message.output_text.logprobs", "include"),
        ("/input_items?order=up", "order"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?after=zz", "after"),
    ],
)
async def test_a_query_is_honoured_or_refused(serve: Serve, says, query: str, field: str) -> None:
    async with serve(FakeEngine([says("ok")])) as server, sdk(server) as client:
        reply = await client.responses.create(model=M, input="hi")
        async with server.http.get(f"{PATH}/{reply.id}{query}", headers=SID) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, field)


async def test_a_background_response_runs_without_readers_and_is_followed(serve: Serve, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([says("one two three", by_token=True, hold=hold, hold_before=2)])
    async with serve(engine) as server, sdk(server) as client:
        stream = await client.responses.create(model=M, input="hi", background=True, stream=True)
        seen = [await anext(stream) for _ in range(5)]
        await stream.close()
        response_id = seen[0].response.id
        running = await client.responses.retrieve(response_id)
        assert (running.status, running.background, running.output) == ("in_progress", True, [])
        with pytest.raises(openai.BadRequestError, match="no output to go on from"):
            await client.responses.create(model=M, input="x", previous_response_id=response_id)
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=4)
        hold.set()
        seen += [event async for event in rest]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].response.output_text == "one two three"
        assert engine.closed == 0


async def test_a_whole_background_response_is_polled(serve: Serve, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([says("one", hold=hold), says("two")])
    async with serve(engine, tool_parser="xml") as server, sdk(server) as client:
        started = await client.responses.create(model=M, input="hi", background=True)
        assert (started.status, started.output_text) == ("in_progress", "")
        hold.set()
        await until(lambda: server.state.sessions.find("sid").trajectory.turn_count == 1)
        ended = await client.responses.retrieve(started.id)
        assert (ended.status, ended.output_text) == ("completed", "one")
        other = await client.responses.create(model=M, input="hi", background=True)
        assert other.id != started.id
        with pytest.raises(openai.BadRequestError, match="stream=true"):
            await client.responses.retrieve(started.id, stream=True)


async def test_cancel_stops_a_background_response(serve: Serve, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([says("one two", by_token=True, hold=hold, hold_before=1), says("whole")])
    async with serve(engine) as server, sdk(server) as client:
        stream = await client.responses.create(model=M, input="hi", background=True, stream=True)
        first = await anext(stream)
        cancelled = await client.responses.cancel(first.response.id)
        assert (cancelled.status, cancelled.error) == ("cancelled", None)
        assert await client.responses.cancel(first.response.id) == cancelled
        kinds = []
        with pytest.raises(openai.APIConnectionError):  # a reply that was cut short never ends as if it were whole
            async for event in stream:
                kinds.append(event.type)
        assert kinds[-1] == "response.failed"
        assert engine.closed == 1
        whole = await client.responses.create(model=M, input="hi")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(whole.id)
        async with server.http.get("/v1/sessions/sid") as response:
            assert (await response.json())["turn_count"] == 1


async def test_deleting_a_background_response_stops_it(serve: Serve, says) -> None:
    engine = FakeEngine([says("one", hold=asyncio.Event())])
    async with serve(engine) as server, sdk(server) as client:
        started = await client.responses.create(model=M, input="hi", background=True)
        await until(lambda: engine.requests)
        await client.responses.delete(started.id)
        assert engine.closed == 1
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(started.id)


async def test_a_background_response_that_is_refused_is_a_plain_error(serve: Serve, says) -> None:
    async with serve(FakeEngine(), max_context_tokens=8) as server, sdk(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model=M, input="hi", background=True)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
        with pytest.raises(openai.BadRequestError, match="store"):
            await client.responses.create(model=M, input="hi", background=True, store=False)


async def test_a_cut_reply_is_incomplete(serve: Serve, encode) -> None:
    engine = FakeEngine([Answer([encode("The answer is")], FinishReason.LENGTH) for _ in range(2)])
    async with serve(engine) as server, sdk(server) as client:
        whole = await client.responses.create(model=M, input="hi", max_output_tokens=3)
        events = [event async for event in await client.responses.create(model=M, input="hi", stream=True)]
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output[0].status == "incomplete"
    assert engine.requests[0].max_tokens == 3


async def test_a_failed_stream_says_so_in_its_last_event(serve: Serve, encode) -> None:
    engine = FakeEngine([Answer([encode("one"), encode(" two")], error=EngineTimeout("silent"))])
    async with serve(engine) as server:
        events = await read_cut(server, {"input": "hi"})
        name, data = events[-1]
        assert (name, data["response"]["status"]) == ("response.failed", "failed")
        assert data["response"]["error"] == {
            "code": "server_error",
            "message": "the engine: silent; try your request again",
        }
        async with server.http.get(f"{PATH}/{data['response']['id']}") as response:
            assert (await response.json())["error"]["code"] == "server_error"


async def read_cut(server: TestServer, body: dict[str, Any]) -> list[tuple[str | None, Any]]:
    """The events of a stream that is cut."""
    raw = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async with server.http.post(PATH, json={**body, "stream": True}) as response:
            async for piece in response.content.iter_any():
                raw += piece
    return events_of(raw)


@pytest.mark.parametrize(("tokens", "kept"), [(14, ["reasoning"]), (40, ["reasoning", "message", "function_call"])])
async def test_a_client_goes_on_from_what_was_complete_of_a_cut_stream(
    serve: Serve, encode, says, tokens: int, kept: list[str]
) -> None:
    """Codex keeps completed items, runs completed calls, and asks again: the cut reply and the next stand side by side."""
    cut = "<think>\nHm.\n</think>\n\nI look." + 2 * CALL.format(name="lookup")
    again = "<think>\nAgain.\n</think>\n\nSo." + CALL.format(name="lookup")
    chunks = [[token] for token in encode(cut)[:tokens]]
    engine = FakeEngine([Answer(chunks, error=EngineTimeout("silent")), says(again), says("done")])
    body: dict[str, Any] = {"input": [{"role": "user", "content": "hi"}], "tools": [LOOKUP]}

    def keep(items: list[dict[str, Any]]) -> None:
        calls = [item["call_id"] for item in items if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call_id, "output": "r"} for call_id in calls]
        body["input"] += [*items, *results]

    async with serve(engine, tool_parser="xml", reasoning_parser="think") as server:
        events = await read_cut(server, body)
        done = [data["item"] for name, data in events if name == "response.output_item.done"]
        assert [item["type"] for item in done] == kept
        keep(done)
        for reason in ("interrupted", "exact"):
            async with server.http.post(PATH, json=body) as response:
                assert response.headers["x-rollserve-match"] == reason
                keep((await response.json())["output"])
        first, second, third = (request.prompt_ids.tolist() for request in engine.requests)
    assert second[: len(first) + 2] == [*first, *chunks[0], *chunks[1]]
    assert third[: len(second)] == second


async def test_a_silent_stream_shows_signs_of_life_with_data(serve: Serve, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([says("one two", by_token=True, hold=hold, hold_before=1)])
    async with (
        serve(engine, keepalive_s=0.02) as server,
        server.http.post(PATH, json={"input": "hi", "stream": True}) as response,
    ):
        raw = b""
        while raw.count(b"event: response.in_progress\n") < 3:
            raw += await response.content.readany()
        hold.set()
        raw += await response.read()
    events = [data for name, data in events_of(raw) if name == "response.in_progress"]
    assert all(data["response"]["id"] == events[0]["response"]["id"] for data in events)
    assert all(data["sequence_number"] == 1 for data in events)


async def test_a_websocket_is_told_to_upgrade_its_expectations(serve: Serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.get(PATH, headers={"Upgrade": "websocket", "Connection": "Upgrade"}) as response:
            assert response.status == 426
            assert (await response.json())["error"]["type"] == "invalid_request_error"
        async with server.http.get(PATH) as response:
            assert response.status == 405


async def test_stored_responses_are_bounded(serve: Serve, says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_RESPONSES", 3)
    engine = FakeEngine([says(str(number)) for number in range(6)])
    async with serve(engine) as server, sdk(server) as client:
        made = [await client.responses.create(model=M, input="hi") for _ in range(5)]
        store = server.state.sessions.find("sid").responses
        assert [store.get(response.id) is not None for response in made] == [False, False, True, True, True]
        last = store.get(made[-1].id)
        assert last is not None and last.describe is None
        monkeypatch.setattr(stored, "MAX_BYTES", last.size + 100)  # more than its input, less than its body
        newest = await client.responses.create(model=M, input="hi")
        assert [store.get(response.id) for response in made] == [None] * 5
        assert store.get(newest.id) is not None
        monkeypatch.setattr(stored, "MAX_BYTES", 1)
        assert (await client.responses.retrieve(newest.id)).id == newest.id


async def test_a_retry_joins_the_response_that_runs(serve: Serve, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([says("one", hold=hold)])
    retry = {**SID, "x-stainless-retry-count": "1"}

    async def ask(server: TestServer, headers: dict[str, str]) -> Any:
        async with server.http.post(PATH, json={"input": "hi"}, headers=headers) as response:
            assert response.status == 200
            return await response.json()

    async with serve(engine) as server:
        first = asyncio.create_task(ask(server, SID))
        await until(lambda: engine.requests)
        second = asyncio.create_task(ask(server, retry))
        await until(lambda: server.state.sessions.find("sid").replies.running()[0]._readers == 2)
        hold.set()
        assert await first == await second


async def test_a_response_that_nobody_reads_is_kept_when_its_events_are_not(serve: Serve, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([says("one", hold=hold)])
    async with serve(engine, replay_session_bytes=0) as server, sdk(server) as client:
        started = await client.responses.create(model=M, input="hi", background=True)
        hold.set()
        await until(lambda: server.state.sessions.find("sid").trajectory.turn_count == 1)
        assert (await client.responses.retrieve(started.id)).output_text == "one"


async def test_a_response_outlives_its_events(serve: Serve, says) -> None:
    engine = FakeEngine([says("one", by_token=True), says("two")])
    async with serve(engine, replay_session_bytes=0) as server, sdk(server) as client:
        events = [event async for event in await client.responses.create(model=M, input="hi", stream=True)]
        first = events[-1].response
        second = await client.responses.create(model=M, input="on", previous_response_id=first.id)
        assert second.output_text == "two"
        assert await client.responses.retrieve(first.id) == first
        with pytest.raises(openai.APIStatusError, match="no longer kept") as gone:
            await client.responses.retrieve(first.id, stream=True)
        assert gone.value.status_code == 410
        assert await reasons(server) == ["new", "exact"]


async def test_a_response_ends_with_its_session(serve: Serve, says) -> None:
    async with serve(FakeEngine([says("one")])) as server, sdk(server) as client:
        made = await client.responses.create(model=M, input="hi")
        async with server.http.post("/v1/sessions/sid/finish", json={}) as response:
            assert response.status == 200
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_the_session_can_be_named_by_the_path(serve: Serve, says) -> None:
    engine = FakeEngine([says("one"), says("two")])
    async with serve(engine) as server:
        async with server.http.post("/v1/sessions", json={"sid": "p"}) as response:
            assert response.status == 201
        async with server.http.post("/s/p/v1/responses", json={"input": "hi"}) as response:
            first = await response.json()
        again = {"input": "on", "previous_response_id": first["id"]}
        async with server.http.post("/s/p/v1/responses", json=again) as response:
            assert response.status == 200
        async with server.http.get(f"/s/p/v1/responses/{first['id']}") as response:
            assert orjson.loads(await response.read()) == first
        async with server.http.get(f"/v1/responses/{first['id']}") as response:
            assert orjson.loads(await response.read()) == first, "its id says whose it is"
        for elsewhere in (
            {"url": f"/v1/responses/{first['id']}", "headers": SID},
            {"url": f"/s/q/v1/responses/{first['id']}"},
        ):
            await server.http.post("/v1/sessions", json={"sid": "q"})
            async with server.http.get(**elsewhere) as response:
                assert response.status == 404, "who names a session finds only what is of it"
