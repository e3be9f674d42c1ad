"""The official Google Gen AI SDK against the adapter, on the scripted model in a real tritonserver."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from google import genai
from google.genai import errors, types

from tests.e2e.sdks.served import (
    ANSWER,
    ARGUMENTS,
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

# google-genai 3.6 derives its session from aiohttp's, which aiohttp discourages.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

DECLARATION = types.FunctionDeclaration(
    name="get_weather",
    description="Weather.",
    parameters=types.Schema(
        type="OBJECT",
        properties={"city": types.Schema(type="STRING"), "days": types.Schema(type="INTEGER")},
        required=["city"],
    ),
)
TOOLS = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[DECLARATION])])


def sync_client(url: str, key: str = "k") -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url))


@asynccontextmanager
async def client_of(url: str, key: str = "k") -> AsyncIterator[genai.client.AsyncClient]:
    client = sync_client(url, key)
    async with client.aio as aio:
        yield aio
    client.close()


async def test_a_tool_loop(server: ScriptedServer) -> None:
    question = types.Content(role="user", parts=[types.Part(text="How is the weather in Paris?")])
    async with client_of(await open_session(server, "g-loop")) as client:
        stream = await client.models.generate_content_stream(model="m", contents=[question], config=TOOLS)
        chunks = [chunk async for chunk in stream]
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
        assert "".join(part.text or "" for part in parts) == SAID
        (call,) = [part.function_call for part in parts if part.function_call]
        assert (call.name, call.args) == ("get_weather", ARGUMENTS)
        answer = types.Part(
            function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": "sunny"})
        )
        history = [question, types.Content(role="model", parts=parts), types.Content(role="user", parts=[answer])]
        reply = await client.models.generate_content(model="m", contents=history, config=TOOLS)
        assert (reply.text, reply.candidates[0].finish_reason) == (TEXT, types.FinishReason.STOP)
    assert chunks[-1].usage_metadata.candidates_token_count == len(logged(server, "g-loop")[0]["output_ids"])
    await check_one_row(server, "g-loop")


async def test_functions_that_the_sdk_calls_itself(server: ScriptedServer) -> None:
    asked = []

    def get_weather(city: str, days: int) -> str:
        """Weather."""
        asked.append((city, days))
        return "sunny"

    async with client_of(await open_session(server, "g-auto")) as client:
        config = types.GenerateContentConfig(tools=[get_weather])
        reply = await client.models.generate_content(model="m", contents="How is the weather?", config=config)
    assert asked == [("Paris", 2)]
    assert reply.text == TEXT
    await check_one_row(server, "g-auto")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_with_thoughts(server: ScriptedServer, stream: bool) -> None:
    """A streamed reply comes back in the contents of its chunks."""
    sid = f"g-chat-{stream}"
    config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))
    async with client_of(await open_session(server, sid)) as client:
        chat = client.chats.create(model="m", config=config)
        if stream:
            replies = [chunk async for chunk in await chat.send_message_stream("ponder")]
        else:
            replies = [await chat.send_message("ponder")]
        parts = [part for reply in replies for part in reply.candidates[0].content.parts]
        assert "".join(part.text for part in parts if part.thought).strip() == THOUGHT
        assert "".join(part.text for part in parts if not part.thought) == ANSWER
        assert replies[-1].usage_metadata.thoughts_token_count > 0
        assert (await chat.send_message("and now?")).text == ANSWER
    assert await reasons(server, sid) == ["new", "exact"]


async def test_synchronous_client(server: ScriptedServer) -> None:
    def ask() -> str:
        client = sync_client(server.url, "sync-g")
        stream = client.models.generate_content_stream(model="m", contents="hello")
        text = "".join(chunk.text for chunk in stream)
        client.close()
        return text

    assert await asyncio.to_thread(ask) == TEXT


async def test_streamed_equals_whole(server: ScriptedServer) -> None:
    async with client_of(server.url, "eq-g") as client:
        whole = await client.models.generate_content(model="m", contents="hello")
        stream = await client.models.generate_content_stream(model="m", contents="hello")
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == whole.text == TEXT
    streamed = chunks[-1].usage_metadata
    assert streamed.total_token_count == whole.usage_metadata.total_token_count
    assert streamed.cached_content_token_count > 0
    assert chunks[0].usage_metadata.prompt_token_count == whole.usage_metadata.prompt_token_count


async def test_limits_counts_and_models(server: ScriptedServer) -> None:
    async with client_of(server.url, "limit-g") as client:
        config = types.GenerateContentConfig(max_output_tokens=4)
        reply = await client.models.generate_content(model="m", contents="cut me", config=config)
        assert reply.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS
        assert reply.usage_metadata.candidates_token_count == 4
        counted = await client.models.count_tokens(model="m", contents="cut me")
        assert counted.total_tokens == reply.usage_metadata.prompt_token_count
        config = types.GenerateContentConfig(stop_sequences=[" on and"])
        assert (await client.models.generate_content(model="m", contents="cut me", config=config)).text == "This goes"
        assert [model.name async for model in await client.models.list()] == ["models/m"]
        assert (await client.models.get(model="m")).input_token_limit > 0


async def test_errors_are_the_sdks_own_exceptions(server: ScriptedServer) -> None:
    async with client_of(server.url, "e-g") as client:
        with pytest.raises(errors.ClientError, match="there is no model 'x'") as caught:
            await client.models.generate_content(model="x", contents="hello")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
        config = types.GenerateContentConfig(response_mime_type="application/json", response_schema={"type": "OBJECT"})
        with pytest.raises(errors.ClientError, match="responseSchema"):
            await client.models.generate_content(model="m", contents="hello", config=config)
        with pytest.raises(errors.APIError) as caught:
            await client.models.generate_content(model="m", contents="refuse")
        assert caught.value.code in (400, 500, 502, 503)
        stream = await client.models.generate_content_stream(model="m", contents="break")
        with pytest.raises(errors.APIError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code == 502
    del caught, stream
    with warnings.catch_warnings():
        # The SDK does not close the connection of a stream that failed; here nobody else is told of it.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert await turn_count(server, "e-g") == 0


async def test_a_client_that_leaves_frees_the_engines_slot(server: ScriptedServer) -> None:
    async with client_of(server.url, "leaver-g") as client:
        stream = await client.models.generate_content_stream(model="m", contents="linger")
        async for chunk in stream:
            if chunk.text:
                break
        await stream.aclose()
    await until(lambda: logged(server, "leaver-g"))
    (entry,) = logged(server, "leaver-g")
    assert entry["finish_reason"] == "cancelled"
