"""The official Anthropic SDK against the adapter, on the scripted model in a real tritonserver."""

from __future__ import annotations

import asyncio

import anthropic
import pytest
from anthropic import beta_async_tool
from pydantic import BaseModel

from tests.e2e.sdks.served import (
    ANSWER,
    ARGUMENTS,
    PARAMETERS,
    SAID,
    TEXT,
    THOUGHT,
    check_one_row,
    logged,
    open_session,
    reasons,
    turn_count,
)
from tests.support.scripted import ScriptedServer
from tests.support.wait import until

TOOLS = [{"name": "get_weather", "description": "Weather.", "input_schema": PARAMETERS}]


class Weather(BaseModel):
    """What an output format asks for."""

    city: str


def asking(text: str, **members: object) -> dict:
    return {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": text}], **members}


async def test_a_tool_loop(server: ScriptedServer) -> None:
    client = anthropic.AsyncAnthropic(base_url=await open_session(server, "a-loop"), api_key="k")
    ask = asking("How is the weather in Paris?", max_tokens=100, tools=TOOLS)
    async with client.messages.stream(**ask) as stream:
        kinds = {event.type async for event in stream}
        first = await stream.get_final_message()
    assert {"text", "input_json", "message_stop"} <= kinds
    assert first.stop_reason == "tool_use"
    text, use = first.content
    assert text.text == SAID
    assert (use.name, use.input) == ("get_weather", ARGUMENTS)
    ask["messages"] += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
    ]
    second = await client.messages.create(**ask)
    assert (second.content[0].text, second.stop_reason) == (TEXT, "end_turn")
    await client.close()
    assert second.usage.output_tokens == len(logged(server, "a-loop")[1]["output_ids"])
    await check_one_row(server, "a-loop")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_tool_runner(server: ScriptedServer, stream: bool) -> None:
    asked = []

    @beta_async_tool
    async def get_weather(city: str, days: int = 1) -> str:
        """Weather.

        Args:
            city: Where.
            days: How many.
        """
        asked.append((city, days))
        return "sunny"

    sid = f"a-runner-{stream}"
    async with anthropic.AsyncAnthropic(base_url=await open_session(server, sid), api_key="k") as client:
        ask = asking("How is the weather in Paris?", max_tokens=100)
        last = await client.beta.messages.tool_runner(**ask, tools=[get_weather], stream=stream).until_done()
    assert asked == [("Paris", 2)]
    assert last.content[0].text == TEXT
    await check_one_row(server, sid)


async def test_thinking_is_streamed_signed_and_replayed(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=await open_session(server, "a-think"), api_key="k") as client:
        ask = asking("ponder", max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
        async with client.messages.stream(**ask) as stream:
            kinds = {event.type async for event in stream}
            reply = await stream.get_final_message()
        assert {"thinking", "signature", "text"} <= kinds
        thinking, text = reply.content
        assert (thinking.thinking.strip(), text.text) == (THOUGHT, ANSWER)
        ask["messages"] += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "and now?"}]
        await client.messages.create(**ask)
    assert await reasons(server, "a-think") == ["new", "exact"]


async def test_synchronous_client(server: ScriptedServer) -> None:
    def ask() -> str:
        with anthropic.Anthropic(base_url=server.url, api_key="sync-a") as client:
            with client.messages.stream(**asking("hello")) as stream:
                return "".join(stream.text_stream)

    assert await asyncio.to_thread(ask) == TEXT


async def test_streamed_equals_whole(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="eq-a") as client:
        whole = await client.messages.create(**asking("hello"))
        async with client.messages.stream(**asking("hello")) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
    assert text == whole.content[0].text == TEXT
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    cached = streamed.usage.cache_read_input_tokens
    assert cached > 0, "the same prompt again is in the engine's cache"
    assert streamed.usage.input_tokens + cached == whole.usage.input_tokens


async def test_limits_counts_and_models(server: ScriptedServer) -> None:
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


async def test_errors_are_the_sdks_own_exceptions(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="e-a", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'x'"):
            await client.messages.create(**asking("hello", model="x"))
        with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
            await client.messages.create(**asking("hello", tools=TOOLS, tool_choice={"type": "any"}))
        with pytest.raises(anthropic.BadRequestError, match="output_config"):
            await client.messages.parse(**asking("hello"), output_format=Weather)
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**asking("refuse"))
        assert caught.value.status_code in (500, 502, 503)
        with pytest.raises(anthropic.APIError):
            async with client.messages.stream(**asking("break")) as stream:
                await stream.get_final_message()
    assert await turn_count(server, "e-a") == 0


async def test_a_client_that_leaves_frees_the_engines_slot(server: ScriptedServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="leaver") as client:
        async with client.messages.stream(**asking("linger")) as stream:
            async for _ in stream.text_stream:
                break
    await until(lambda: logged(server, "leaver"))
    (entry,) = logged(server, "leaver")
    assert entry["finish_reason"] == "cancelled"
    assert await turn_count(server, "leaver") == 0
