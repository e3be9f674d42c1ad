"""Several choices in one reply, and log probs in the reply: as the client and the record see them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.errors import EngineUnavailable
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects
from tests.support.wait import until

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
END = 151645
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def ask(server: Any, **members: Any) -> Any:
    async with server.http.post(CHAT, json={"messages": HELLO, **members}) as response:
        assert response.status == 200, await response.text()
        return data_objects(await response.read()) if members.get("stream") else await response.json()


async def samples(server: Any) -> list[dict[str, Any]]:
    async with server.http.post("/v1/sessions/default/finish", json={}) as response:
        return (await response.json())["samples"]


def answers(encode: Any, *texts: str) -> list[Answer]:
    return [Answer([[token] for token in [*encode(text), END]], cached_tokens=at) for at, text in enumerate(texts, 3)]


async def test_each_choice_is_a_turn_of_its_own(serve, encode) -> None:
    engine = FakeEngine(answers(encode, "one", "two words", "three"))
    async with serve(engine, tool_parser="hermes") as server:
        body = await ask(server, n=3, seed=2**64 - 1)
        assert ChatCompletion.model_validate(body)
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert [choice["message"]["content"] for choice in body["choices"]] == ["one", "two words", "three"]
        assert [request.sampling.seed for request in engine.requests] == [2**64 - 1, 0, 1]
        assert len({request.request_id for request in engine.requests}) == 3
        assert [request.turn for request in engine.requests] == [1, 2, 3]
        prompts = {tuple(request.prompt_ids.tolist()) for request in engine.requests}
        assert len(prompts) == 1
        sampled = sum(len(encode(text)) + 1 for text in ("one", "two words", "three"))
        assert body["usage"]["completion_tokens"] == sampled
        assert body["usage"]["prompt_tokens"] == len(next(iter(prompts)))
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        made = await samples(server)
    assert len(made) == 3
    assert sum(sum(sample["loss_mask"]) for sample in made) == sampled


async def test_streamed_choices_carry_their_index_and_end_once(serve, encode) -> None:
    engine = FakeEngine(answers(encode, "one, two", f"Look.\n{CALL}"))
    async with serve(engine, tool_parser="hermes") as server:
        objects = await ask(server, n=2, stream=True, tools=[TOOL], stream_options={"include_usage": True})
    assert objects.count("[DONE]") == 1
    assert objects[-1] == "[DONE]"
    assert objects[-2]["choices"] == []
    state = ChatCompletionStreamState()
    for chunk in objects[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    first, second = state.current_completion_snapshot.choices
    assert (first.index, first.message.content, first.finish_reason) == (0, "one, two", "stop")
    assert (second.index, second.message.content, second.finish_reason) == (1, "Look.", "tool_calls")
    assert second.message.tool_calls is not None
    assert second.message.tool_calls[0].function.arguments == '{"a": 1}'
    roles = [chunk["choices"][0]["index"] for chunk in objects[:-2] if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1]
    ends = [chunk["choices"][0]["index"] for chunk in objects[:-2] if chunk["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]


async def test_choices_are_sampled_at_once(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("a")], hold=hold), Answer([encode("b")], hold=hold)])
    async with serve(engine) as server:
        asked = asyncio.create_task(ask(server, n=2))
        await until(lambda: len(engine.requests) == 2)
        hold.set()
        assert len((await asked)["choices"]) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_choice_that_fails_takes_the_reply_with_it(serve, encode, stream) -> None:
    never = asyncio.Event()
    engine = FakeEngine(
        [
            Answer([encode("fine"), [END]]),
            Answer([encode("half")], error=EngineUnavailable("it is gone")),
            Answer([encode("slow"), [END]], hold=never, hold_before=1),
        ]
    )
    async with serve(engine) as server:
        body = {"messages": HELLO, "n": 3, "stream": stream}
        async with server.http.post(CHAT, json=body) as response:
            raw = b""
            with suppress(aiohttp.ClientPayloadError):  # a failed stream is cut off
                async for part in response.content.iter_any():
                    raw += part
        assert b"it is gone" in raw
        assert b"[DONE]" not in raw
        assert (response.status == 200) is stream
        await until(lambda: engine.closed == 1)
        assert server.state.sessions.live()[0].turns_in_flight == 0


async def test_a_client_that_leaves_stops_every_choice(serve, encode) -> None:
    never = asyncio.Event()
    engine = FakeEngine([Answer([encode("a b c"), [END]], hold=never, hold_before=1) for _ in range(2)])
    async with serve(engine) as server:
        async with server.http.post(CHAT, json={"messages": HELLO, "n": 2, "stream": True}) as response:
            await response.content.readany()
            response.close()
        await until(lambda: engine.closed == 2)
        assert server.state.sessions.live()[0].trajectory.turn_count == 0


async def test_choices_count_against_the_turn_limit(serve, encode) -> None:
    engine = FakeEngine(answers(encode, "a", "b", "c"))
    async with serve(engine, max_turns=3) as server:
        assert len((await ask(server, n=2))["choices"]) == 2
        async with server.http.post(CHAT, json={"messages": HELLO, "n": 2}) as response:
            assert response.status == 429
        assert len((await ask(server))["choices"]) == 1


def stated(tokens: list[dict[str, Any]]) -> bytes:
    return b"".join(bytes(token["bytes"]) for token in tokens)


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probs_are_those_of_every_sampled_token(serve, encode, stream) -> None:
    text = f"<think>hm 𝄞</think>Look.\n{CALL}"
    ids = [*encode(text), END]
    log_probs = [-0.25 * at for at in range(len(ids))]
    engine = FakeEngine([Answer([ids[:3], ids[3:4], ids[4:]], log_probs=log_probs)])
    async with serve(engine, tool_parser="hermes", reasoning_parser="think") as server:
        reply = await ask(server, logprobs=True, top_logprobs=0, stream=stream, tools=[TOOL])
        if stream:
            state = ChatCompletionStreamState()
            for chunk in reply[:-1]:
                state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
            reply = state.current_completion_snapshot.to_dict()
        told = reply["choices"][0]["logprobs"]["content"]
    assert [token["logprob"] for token in told] == log_probs
    assert stated(told).decode() == text + "<|im_end|>"
    assert all(token["top_logprobs"] == [] for token in told)
    assert "�" in "".join(token["token"] for token in told)  # the clef is spread over tokens; its bytes are exact


async def test_log_probs_end_where_a_stop_string_does(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("one two STOP three four")])])
    async with serve(engine) as server:
        reply = await ask(server, logprobs=True, stop="STOP")
    told = reply["choices"][0]["logprobs"]["content"]
    assert stated(told) == b"one two STOP"
    assert len(told) == reply["usage"]["completion_tokens"]


async def test_log_probs_are_not_there_unless_asked_for(serve, encode) -> None:
    engine = FakeEngine(answers(encode, "a", "b"))
    async with serve(engine) as server:
        assert "logprobs" not in (await ask(server))["choices"][0]
        chunks = await ask(server, stream=True)
    assert not any("logprobs" in chunk["choices"][0] for chunk in chunks[:-1])


async def test_log_probs_of_several_choices(serve, encode) -> None:
    engine = FakeEngine(answers(encode, "one", "two"))
    async with serve(engine) as server:
        reply = await ask(server, n=2, logprobs=True)
    assert [stated(choice["logprobs"]["content"]) for choice in reply["choices"]] == [
        b"one<|im_end|>",
        b"two<|im_end|>",
    ]
