"""The official OpenAI SDK against Responses of the adapter, on the scripted model in a real tritonserver."""

from __future__ import annotations

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
    open_session,
    reasons,
    turn_count,
)
from tests.support.scripted import ScriptedServer

TOOLS = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}]


class Weather(BaseModel):
    """What an output format asks for."""

    city: str


def client_of(url: str, key: str = "k") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_tool_loop(server: ScriptedServer, stored: bool) -> None:
    """The history is the server's (``previous_response_id``) or the client's."""
    sid = f"r-loop-{stored}"
    question = {"role": "user", "content": "How is the weather in Paris?"}
    async with client_of(await open_session(server, sid)) as client:
        async with client.responses.stream(model="m", input=[question], tools=TOOLS, store=stored) as stream:
            kinds = {event.type async for event in stream}
            first = await stream.get_final_response()
        assert {"response.created", "response.output_text.delta", "response.function_call_arguments.delta"} <= kinds
        message, call = first.output
        assert message.content[0].text == SAID
        assert (call.name, json.loads(call.arguments)) == ("get_weather", ARGUMENTS)
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        history = [answer] if stored else [question, *[item.to_dict() for item in first.output], answer]
        previous = {"previous_response_id": first.id} if stored else {}
        second = await client.responses.create(model="m", input=history, tools=TOOLS, store=stored, **previous)
        assert (second.output_text, second.status) == (TEXT, "completed")
    await check_one_row(server, sid)


async def test_reasoning_is_an_item_that_comes_back(server: ScriptedServer) -> None:
    ask = {"model": "m", "store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    async with client_of(await open_session(server, "r-think")) as client:
        first = await client.responses.create(input="ponder", **ask)
        reasoning, _ = first.output
        assert reasoning.summary[0].text.strip() == THOUGHT
        assert first.output_text == ANSWER
        assert first.usage.output_tokens_details.reasoning_tokens > 0
        history = [{"role": "user", "content": "ponder"}, *[item.to_dict() for item in first.output]]
        await client.responses.create(input=[*history, {"role": "user", "content": "and now?"}], **ask)
    assert await reasons(server, "r-think") == ["new", "exact"]


async def test_streamed_equals_whole(server: ScriptedServer) -> None:
    async with client_of(server.url, "eq-r") as client:
        whole = await client.responses.create(model="m", input="hello")
        async with client.responses.stream(model="m", input="hello") as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            streamed = await stream.get_final_response()
    assert text == whole.output_text == streamed.output_text == TEXT
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    assert streamed.usage.input_tokens_details.cached_tokens > 0


async def test_a_stored_response_is_read_again_from_any_event(server: ScriptedServer) -> None:
    async with client_of(await open_session(server, "r-again")) as client:
        first = await client.responses.create(model="m", input="hello", stream=True)
        events = [event async for event in first]
        response_id = events[0].response.id
        again = await client.responses.retrieve(response_id, stream=True, starting_after=events[1].sequence_number)
        assert [event.to_dict() async for event in again] == [event.to_dict() for event in events[2:]]
        assert (await client.responses.retrieve(response_id)).output_text == TEXT
        await client.responses.delete(response_id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response_id)


async def test_limits(server: ScriptedServer) -> None:
    async with client_of(server.url, "limit-r") as client:
        reply = await client.responses.create(model="m", input="cut me", max_output_tokens=4)
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert reply.usage.output_tokens == 4


async def test_errors_are_the_sdks_own_exceptions(server: ScriptedServer) -> None:
    async with client_of(server.url, "e-r") as client:
        with pytest.raises(openai.NotFoundError, match="there is no model 'x'"):
            await client.responses.create(model="x", input="hello")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.parse(model="m", input="hello", text_format=Weather)
        assert refused.value.param == "text.format"
        with pytest.raises(openai.APIError):
            async with client.responses.stream(model="m", input="break") as stream:
                await stream.get_final_response()
    assert await turn_count(server, "e-r") == 0
