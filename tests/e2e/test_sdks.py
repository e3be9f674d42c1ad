"""The official SDKs against the adapter, on the scripted model in a real tritonserver, compared with the engine's own log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.support.scripted import ScriptedServer, scripted_server
from tests.support.wait import until

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
SCRIPT = {
    "rules": [
        {"prompt_regex": "weather", "turn": 1, "text": f"I look it up.\n{CALL}", "end": True},
        {"prompt_regex": "cut me", "text": "This goes on and on and on and on.", "end": True},
        {"prompt_regex": "break", "text": "Half of it", "fault": {"kind": "cut", "after": 2}},
        {"prompt_regex": "linger", "text": "Half of it", "fault": {"kind": "stall", "after": 2}},
        {"prompt_regex": "refuse", "text": "x", "fault": {"kind": "error_before_first_token"}},
    ],
    "default": {"text": "Sunny — 21 °C, 晴れ.", "end": True},
    "timing": {"time_per_output_token_ms": 2},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TEXT = "Sunny — 21 °C, 晴れ."


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("sdks")
    async with scripted_server(folder, SCRIPT, coalesce_ms="0", served_model_name="m") as server:
        yield server


async def open_session(server: ScriptedServer, sid: str) -> str:
    async with server.http.post("/v1/sessions", json={"sid": sid}) as response:
        return (await response.json())["base_url"]


async def samples(server: ScriptedServer, sid: str) -> list[dict]:
    async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
        return (await response.json())["samples"]


async def reasons(server: ScriptedServer, sid: str) -> list[str]:
    """How each turn's history was recognised."""
    async with server.http.get(f"/v1/sessions/{sid}/explain") as response:
        return [turn["reason"] for turn in (await response.json())["turns"]]


def logged(server: ScriptedServer, sid: str) -> list[dict]:
    return [entry for entry in server.logged() if entry["session"] == sid]


async def test_anthropic_tool_loop(server: ScriptedServer) -> None:
    client = anthropic.AsyncAnthropic(base_url=await open_session(server, "a-loop"), api_key="k")
    tools = [{"name": "get_weather", "description": "Weather.", "input_schema": PARAMETERS}]
    history: list = [{"role": "user", "content": "How is the weather in Paris?"}]
    async with client.messages.stream(model="m", max_tokens=100, messages=history, tools=tools) as stream:
        kinds = {event.type async for event in stream}
        first = await stream.get_final_message()
    assert {"text", "input_json", "message_stop"} <= kinds
    assert first.stop_reason == "tool_use"
    text, use = first.content
    assert text.text == "I look it up."
    assert (use.name, use.input) == ("get_weather", {"city": "Paris", "days": 2})
    history += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
    ]
    second = await client.messages.create(model="m", max_tokens=100, messages=history, tools=tools)
    assert (second.content[0].text, second.stop_reason) == (TEXT, "end_turn")
    await client.close()

    turns = logged(server, "a-loop")
    assert [turn["turn"] for turn in turns] == [1, 2]
    assert second.usage.output_tokens == len(turns[1]["output_ids"])
    assert await reasons(server, "a-loop") == ["new", "exact"]
    (sample,) = await samples(server, "a-loop")
    assert sample["tokens"] == turns[1]["prompt_ids"] + turns[1]["output_ids"]
    trained = [
        token
        for token, mask in zip(sample["tokens"][-sample["response_length"] :], sample["loss_mask"], strict=True)
        if mask
    ]
    assert trained == turns[0]["output_ids"] + turns[1]["output_ids"]


async def test_openai_tool_loop(server: ScriptedServer) -> None:
    client = openai.AsyncOpenAI(base_url=await open_session(server, "o-loop") + "/v1", api_key="k")
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
    history: list = [{"role": "user", "content": "How is the weather in Paris?"}]
    async with client.chat.completions.stream(model="m", messages=history, tools=tools) as stream:
        kinds = {event.type async for event in stream}
        first = (await stream.get_final_completion()).choices[0]
    assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert first.message.content == "I look it up."
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris", "days": 2})
    history += [
        first.message.model_dump(exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = await client.chat.completions.create(model="m", messages=history, tools=tools)
    assert second.choices[0].message.content == TEXT
    await client.close()
    first_turn, second_turn = logged(server, "o-loop")
    known = first_turn["prompt_ids"] + first_turn["output_ids"]
    assert second_turn["prompt_ids"][: len(known)] == known
    assert await reasons(server, "o-loop") == ["new", "exact"]
    assert len(await samples(server, "o-loop")) == 1


async def test_synchronous_clients(server: ScriptedServer) -> None:
    def ask() -> tuple[str, str]:
        user = [{"role": "user", "content": "hello"}]
        with anthropic.Anthropic(base_url=server.url, api_key="sync-a") as client:
            first = client.messages.create(model="m", max_tokens=50, messages=user).content[0].text
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sync-o") as client:
            stream = client.chat.completions.create(model="m", messages=user, stream=True)
            return first, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)


async def test_streamed_equals_whole_for_both_sdks(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="eq-a") as client:
        ask = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
        whole = await client.messages.create(**ask)
        async with client.messages.stream(**ask) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
        assert text == whole.content[0].text == TEXT
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        cached = streamed.usage.cache_read_input_tokens
        assert cached > 0, "the same prompt again is in the engine's cache"
        assert streamed.usage.input_tokens + cached == whole.usage.input_tokens
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="eq-o") as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content == TEXT
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_limits_and_counts(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="limit") as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "cut me"}]}
        reply = await client.messages.create(max_tokens=4, **ask)
        assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 4)
        counted = await client.messages.count_tokens(**ask)
        assert counted.input_tokens == reply.usage.input_tokens
        stopped = await client.messages.create(max_tokens=40, stop_sequences=[" on and"], **ask)
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " on and")
        assert stopped.content[0].text == "This goes"
        assert [model.id async for model in await client.models.list()] == ["m"]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="limit-o") as client:
        reply = await client.chat.completions.create(max_tokens=4, **ask)
        assert reply.choices[0].finish_reason == "length"
        assert [model.id async for model in client.models.list()] == ["m"]


async def test_errors_reach_the_sdks_as_their_own_exceptions(server: ScriptedServer) -> None:
    user = [{"role": "user", "content": "hello"}]
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="e", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'x'"):
            await client.messages.create(model="x", max_tokens=5, messages=user)
        with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
            tools = [{"name": "t", "input_schema": PARAMETERS}]
            await client.messages.create(
                model="m", max_tokens=5, messages=user, tools=tools, tool_choice={"type": "any"}
            )
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "refuse"}])
        assert caught.value.status_code in (500, 502, 503)
        with pytest.raises(anthropic.APIError):
            async with client.messages.stream(
                model="m", max_tokens=50, messages=[{"role": "user", "content": "break"}]
            ) as stream:
                await stream.get_final_message()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="e", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="there is no model 'x'"):
            await client.chat.completions.create(model="x", messages=user)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=user, n=2)
        assert refused.value.param == "n"
        with pytest.raises(openai.APIError):
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "break"}], stream=True
            )
            async for _ in stream:
                pass
    async with server.http.get("/v1/sessions/e") as response:
        assert (await response.json())["turn_count"] == 0


async def test_a_client_that_leaves_frees_the_engines_slot(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="leaver") as client:
        ask = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "linger"}]}
        async with client.messages.stream(**ask) as stream:
            async for _ in stream.text_stream:
                break
    await until(lambda: logged(server, "leaver"))
    (entry,) = logged(server, "leaver")
    assert entry["finish_reason"] == "cancelled"
    async with server.http.get("/v1/sessions/leaver") as response:
        assert (await response.json())["turn_count"] == 0
