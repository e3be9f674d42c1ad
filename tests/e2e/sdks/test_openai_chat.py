"""The official OpenAI SDK against Chat Completions of the adapter, on the scripted model in a real tritonserver."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
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
    turn_count,
)
from tests.support.scripted import ScriptedServer

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


class Weather(BaseModel):
    """What an output format asks for."""

    city: str


def asking(text: str, **members: object) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **members}


async def test_a_tool_loop(server: ScriptedServer) -> None:
    client = openai.AsyncOpenAI(base_url=await open_session(server, "o-loop") + "/v1", api_key="k")
    ask = asking("How is the weather in Paris?", tools=TOOLS)
    async with client.chat.completions.stream(**ask) as stream:
        kinds = {event.type async for event in stream}
        first = (await stream.get_final_completion()).choices[0]
    assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert first.message.content == SAID
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    ask["messages"] += [
        first.message.model_dump(exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = await client.chat.completions.create(**ask)
    assert second.choices[0].message.content == TEXT
    await client.close()
    await check_one_row(server, "o-loop")


async def test_reasoning_comes_beside_the_content(server: ScriptedServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="o-think") as client:
        whole = (await client.chat.completions.create(**asking("ponder"))).choices[0].message
        stream = await client.chat.completions.create(**asking("ponder"), stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning.strip() == whole.reasoning_content.strip() == THOUGHT
    assert "".join(delta.content or "" for delta in deltas) == whole.content == ANSWER


async def test_synchronous_client(server: ScriptedServer) -> None:
    def ask() -> str:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sync-o") as client:
            stream = client.chat.completions.create(**asking("hello"), stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == TEXT


async def test_streamed_equals_whole(server: ScriptedServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="eq-o") as client:
        whole = await client.chat.completions.create(**asking("hello"))
        stream = await client.chat.completions.create(
            **asking("hello"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content == TEXT
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


async def test_choices_and_log_probs(server: ScriptedServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="o-many") as client:
        reply = await client.chat.completions.create(**asking("hello"), n=2, logprobs=True)
    assert [choice.message.content for choice in reply.choices] == [TEXT, TEXT]
    turns = logged(server, "o-many")
    assert len(turns) == 2
    for choice in reply.choices:
        told = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
        assert told.startswith(TEXT.encode())
        assert len(choice.logprobs.content) == len(turns[0]["output_ids"])


async def test_limits_and_models(server: ScriptedServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="limit-o") as client:
        reply = await client.chat.completions.create(**asking("cut me"), max_tokens=4)
        assert reply.choices[0].finish_reason == "length"
        assert [model.id async for model in client.models.list()] == ["m"]


async def test_errors_are_the_sdks_own_exceptions(server: ScriptedServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="e-o", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="there is no model 'x'"):
            await client.chat.completions.create(**asking("hello", model="x"))
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**asking("hello"), logit_bias={"1": 5})
        assert refused.value.param == "logit_bias"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.parse(**asking("hello"), response_format=Weather)
        assert refused.value.param == "response_format"
        with pytest.raises(openai.BadRequestError) as refused:
            strict = openai.pydantic_function_tool(Weather)
            await client.chat.completions.parse(**asking("hello"), tools=[strict])
        assert refused.value.param == "tools.0.function.strict"
        with pytest.raises(openai.APIError):
            stream = await client.chat.completions.create(**asking("break"), stream=True)
            async for _ in stream:
                pass
    assert await turn_count(server, "e-o") == 0
