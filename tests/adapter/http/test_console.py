"""The console's chat: the second seed's request and its events, a conversation that the server keeps, pages loaded anew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects, read_until
from tests.support.wait import until

CHAT = "/api/console/chat"
SEED = Path(__file__).parents[2] / "golden" / "seed" / "console.sse"
END = 151645


def said(text: str, **members: Any) -> dict[str, Any]:
    return {"input": [{"content": [{"text": text}]}], **members}


async def ask(server: Any, body: dict[str, Any]) -> bytes:
    async with server.http.post(CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.read()


def prompts(engine: FakeEngine, qwen: Any) -> list[str]:
    return [
        qwen.tokenizer.decode(request.prompt_ids.tolist(), skip_special_tokens=False) for request in engine.requests
    ]


async def test_the_seeds_request_gives_the_seeds_seven_events(serve, encode) -> None:
    answer = Answer([encode("你"), encode("好"), [*encode("！"), END]])
    async with serve(FakeEngine([answer]), tool_parser="xml") as server:
        async with server.http.post(CHAT, json={"input": [{"content": [{"text": "你好"}]}]}) as response:
            assert response.content_type == "text/event-stream"
            assert await response.read() == SEED.read_bytes()


@pytest.mark.parametrize("policy", ["keep", "template"])
async def test_the_server_puts_what_was_said_before_the_new_input(serve, encode, qwen, policy) -> None:
    engine = FakeEngine([Answer([[*encode("one"), END]]), Answer([[*encode("two"), END]])])
    async with serve(engine, history_policy=policy) as server:
        await ask(server, said("first", session_id="s", user_id="u", channel="console"))
        await ask(server, said("second", session_id="s"))
        first, second = prompts(engine, qwen)
        assert second.startswith(f"{first}one<|im_end|>")
        assert "first" in second
        assert second.count("second") == 1
        async with server.http.get("/v1/sessions/s/history") as response:
            history = await response.json()
        async with server.http.post("/v1/sessions/s/finish") as response:
            (sample,) = (await response.json())["samples"]
    assert [message["content"] for message in history["messages"]] == ["first", "one", "second", "two"]
    assert sum(sample["loss_mask"]) == 4


async def test_the_user_names_the_session_where_nothing_else_does(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("a")]), Answer([encode("b")])])
    async with serve(engine) as server:
        await ask(server, said("x", user_id="u"))
        await ask(server, said("x"))
    assert [request.session for request in engine.requests] == ["u", "default"]


async def test_a_tool_call_and_its_result(serve, encode, qwen) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    engine = FakeEngine([Answer([[*encode(call), END]]), Answer([[*encode("seen"), END]])])
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    async with serve(engine, tool_parser="hermes") as server:
        events = data_objects(await ask(server, said("go", tools=tools)))
        begun, content, ended = events[1:4]
        assert begun == {"object": "message", "type": "plugin_call", "status": "in_progress"}
        assert content["type"] == "data"
        assert content["data"]["name"] == "look"
        assert content["data"]["arguments"] == '{"at":1}'
        assert ended == {"object": "message", "status": "completed"}
        output = {"type": "data", "data": {"call_id": content["data"]["call_id"], "output": "a cat"}}
        result = {"input": [{"type": "plugin_call_output", "content": [output]}], "tools": tools}
        twice = {"input": [{"type": "plugin_call_output", "content": [output, output]}], "tools": tools}
        async with server.http.post(CHAT, json=twice) as response:
            assert response.status == 400
        await ask(server, result)
        assert "<tool_response>\na cat\n</tool_response>" in prompts(engine, qwen)[1]
        async with server.http.post(CHAT, json=result) as response:  # the last reply has no calls any more
            assert response.status == 400
            assert "call_id" in (await response.json())["error"]["message"]


async def test_a_whole_reply(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("hello"), END]])])
    async with serve(engine) as server, server.http.post(CHAT, json=said("x", stream=False)) as response:
        body = await response.json()
    assert (body["object"], body["status"]) == ("response", "completed")
    (message,) = body["output"]
    assert message["content"] == [{"object": "content", "type": "text", "text": "hello"}]
    assert body["usage"]["output_tokens"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": []}]}, "input.0.content"),
        ({"input": [{"content": [{"text": 7}]}]}, "input.0.content.0.text"),
        ({"input": [{"content": [{"type": "image", "image_url": "u"}]}]}, "input.0.content.0.type"),
        ({"input": [{"role": "assistant", "content": [{"text": "x"}]}]}, "input.0.role"),
        ({"input": [{"type": "mcp_call", "content": [{"text": "x"}]}]}, "input.0.type"),
        (said("x", model_slot_override={"provider": "p"}), "model_slot_override"),
        (said("x", request_context={"thinking_level": "low"}), "request_context.thinking_level"),
        (said("x", n=2), "n"),
        (said("x", temperature=9), "temperature"),
        (said("x", session_id=5), "session_id"),
        (said("x", tools=[{"function": {"name": "f"}}] * 2), "tools.1.function.name"),
        (said("x", session_id=None, user_id=[]), "user_id"),
        (said("x", reconnect="yes"), "reconnect"),
        ({"reconnect": True, "session_id": 5}, "session_id"),
        (
            {"input": [{"type": "plugin_call_output", "content": [{"type": "data", "data": {}}]}]},
            "input.0.content.0.data.call_id",
        ),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(serve, body, field) -> None:
    engine = FakeEngine()
    async with serve(engine) as server, server.http.post(CHAT, json=body) as response:
        assert response.status == 400
        answer = await response.json()
    assert (answer["object"], answer["status"]) == ("response", "failed")
    assert answer["error"]["message"].startswith(field)
    assert not engine.requests


async def test_a_page_loaded_anew_gets_the_reply_from_its_beginning_and_goes_on(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("你"), encode("好"), [*encode("！"), END]], hold=hold, hold_before=1)])
    async with serve(engine, tool_parser="xml") as server:
        async with aiohttp.ClientSession(server.url) as page:
            response = await page.post(CHAT, json=said("你好", session_id="s"))
            await read_until(response, "你")
            response.close()
        session = server.state.sessions.find("s")
        await until(lambda: not session.replies.latest("console")._readers)
        async with server.http.post(CHAT, json={"session_id": "s", "reconnect": True}) as response:
            again = await read_until(response, "你")
            assert "好".encode() not in again
            hold.set()
            again += await response.read()
    assert again == SEED.read_bytes()
    assert engine.closed == 0


async def test_a_reply_that_ended_while_no_page_was_open_is_given_once(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("你"), encode("好"), [*encode("！"), END]], hold=hold, hold_before=1)])
    reconnect = {"session_id": "s", "reconnect": True}
    async with serve(engine, tool_parser="xml") as server:
        async with aiohttp.ClientSession(server.url) as page:
            (await page.post(CHAT, json=said("你好", session_id="s"))).close()
        hold.set()
        await until(lambda: server.state.sessions.find("s").trajectory.turn_count == 1)
        assert await ask(server, reconnect) == SEED.read_bytes()
        assert await ask(server, reconnect) == b""
        assert await ask(server, {"session_id": "never", "reconnect": True}) == b""
        assert server.state.sessions.known("never") is None


async def test_the_same_input_joins_and_other_input_is_refused_while_a_reply_runs(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("你"), encode("好"), [*encode("！"), END]], hold=hold, hold_before=1)])
    async with serve(engine, tool_parser="xml") as server:
        first = asyncio.create_task(ask(server, said("你好")))
        await until(lambda: engine.requests)
        async with server.http.post(CHAT, json=said("something else")) as response:
            assert response.status == 409
            assert "input" in (await response.json())["error"]["message"]
        second = asyncio.create_task(ask(server, said("你好")))
        await until(lambda: server.state.sessions.find("default").replies.latest("console")._readers == 2)
        hold.set()
        assert await first == await second == SEED.read_bytes()
    assert len(engine.requests) == 1


async def test_the_same_input_after_a_reply_is_a_new_turn(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("one"), END]]), Answer([[*encode("two"), END]])])
    async with serve(engine) as server:
        assert b"one" in await ask(server, said("go on"))
        assert b"two" in await ask(server, said("go on"))
        assert server.state.sessions.find("default").trajectory.turn_count == 2


async def test_the_conversation_is_there_after_a_restart_and_goes_on(serve, encode, qwen, tmp_path) -> None:
    first, second = FakeEngine([Answer([[*encode("one"), END]])]), FakeEngine([Answer([[*encode("two"), END]])])
    async with serve(first, journal=tmp_path) as server:
        await ask(server, said("first", session_id="s"))
    async with serve(second, journal=tmp_path) as server:
        async with server.http.get("/v1/sessions/s/history") as response:
            saved = (await response.json())["messages"]
        assert [(message["content"], message.get("turn_index")) for message in saved] == [("first", None), ("one", 1)]
        await ask(server, said("second", session_id="s"))
    assert prompts(second, qwen)[0].startswith(f"{prompts(first, qwen)[0]}one<|im_end|>")


async def test_a_reply_that_no_page_took_is_given_after_a_restart(serve, encode, tmp_path) -> None:
    answer = Answer([encode("你"), encode("好"), [*encode("！"), END]])
    async with serve(FakeEngine([answer]), tool_parser="xml", journal=tmp_path) as server:
        async with aiohttp.ClientSession(server.url) as page:
            answer.hold, answer.hold_before = asyncio.Event(), 1
            (await page.post(CHAT, json=said("你好", session_id="s"))).close()
        session = server.state.sessions.find("s")
        await until(lambda: not session.replies.running()[0].events.held)
        answer.hold.set()
        await until(lambda: not session.replies.running())
    async with serve(FakeEngine(), journal=tmp_path) as server:
        reconnect = {"session_id": "s", "reconnect": True}
        assert await ask(server, reconnect) == SEED.read_bytes()
        assert await ask(server, reconnect) == b""
