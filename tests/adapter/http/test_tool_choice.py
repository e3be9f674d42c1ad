"""What a request says of calls, as the client, the engine and the record see it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects, events_of

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
END = 151645
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = {
    MESSAGES: [{"name": "add", "input_schema": PARAMETERS}],
    CHAT: [{"type": "function", "function": {"name": "add", "description": "", "parameters": PARAMETERS}}],
}
ONE = {
    MESSAGES: {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    CHAT: {"parallel_tool_calls": False},
}
NONE = {MESSAGES: {"tool_choice": {"type": "none"}}, CHAT: {"tool_choice": "none"}}


def call(number: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {number}}}}}\n</tool_call>'


async def ask(server: Any, route: str, **members: Any) -> Any:
    body = {"messages": HELLO, "tools": TOOLS[route], **members}
    async with server.http.post(route, json=body) as response:
        assert response.status == 200, await response.text()
        return events_of(await response.read()) if members.get("stream") else await response.json()


async def only_sample(server: Any) -> dict[str, Any]:
    async with server.http.post("/v1/sessions/default/finish", json={}) as response:
        (sample,) = (await response.json())["samples"]
    return sample


def sampled(sample: dict[str, Any]) -> list[int]:
    tokens = sample["tokens"][-sample["response_length"] :]
    return [token for token, mask in zip(tokens, sample["loss_mask"], strict=True) if mask]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("route", [MESSAGES, CHAT])
async def test_a_reply_ends_with_the_one_call_that_it_may_hold(serve, encode, route, size) -> None:
    kept = encode(f"I add.\n{call(1)}")
    ids = [*kept, *encode(f"\n{call(2)}"), END]
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
    engine = FakeEngine([Answer(chunks)])
    async with serve(engine, tool_parser="hermes") as server:
        reply = await ask(server, route, **ONE[route])
        if route == MESSAGES:
            assert [block["type"] for block in reply["content"]] == ["text", "tool_use"]
            assert reply["content"][1]["input"] == {"a": 1}
            assert (reply["stop_reason"], reply["usage"]["output_tokens"]) == ("tool_use", len(kept))
        else:
            (choice,) = reply["choices"]
            assert [made["function"]["arguments"] for made in choice["message"]["tool_calls"]] == ['{"a":1}']
            assert (choice["finish_reason"], reply["usage"]["completion_tokens"]) == ("tool_calls", len(kept))
        assert sampled(await only_sample(server)) == kept
    assert engine.closed == (1 if size < 100 else 0)  # the rest is not sampled


async def test_a_model_that_stops_behind_its_one_call_keeps_its_end_token(serve, encode) -> None:
    ids = [*encode(call(1)), END]
    async with serve(FakeEngine([Answer([[token] for token in ids])]), tool_parser="hermes") as server:
        await ask(server, CHAT, **ONE[CHAT])
        assert sampled(await only_sample(server)) == ids


async def test_the_one_call_is_streamed_as_it_comes(serve, encode) -> None:
    ids = encode(f"{call(1)}\n{call(2)}")
    engine = FakeEngine([Answer([[token] for token in [*ids, END]])])
    async with serve(engine, tool_parser="hermes") as server:
        events = await ask(server, MESSAGES, stream=True, **ONE[MESSAGES])
    starts = [data for name, data in events if name == "content_block_start"]
    pieces = [data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"]
    assert len(starts) == 1
    assert len(pieces) > 1
    assert "".join(pieces) == '{"a": 1}'


async def test_log_probs_end_with_the_one_call(serve, encode) -> None:
    kept = encode(call(1))
    ids = [*kept, *encode(f"\n{call(2)}"), END]
    engine = FakeEngine([Answer([ids[at : at + 2] for at in range(0, len(ids), 2)])])
    async with serve(engine, tool_parser="hermes") as server:
        body = {"messages": HELLO, "tools": TOOLS[CHAT], "logprobs": True, "stream": True, **ONE[CHAT]}
        async with server.http.post(CHAT, json=body) as response:
            chunks = data_objects(await response.read())[:-1]
    told = [token for chunk in chunks for token in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]]
    assert len(told) == len(kept)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", [MESSAGES, CHAT])
async def test_without_calls_the_client_reads_what_the_model_wrote(serve, encode, route, stream) -> None:
    text = f"So.\n{call(1)}"
    engine = FakeEngine([Answer([[*encode(text), END]]), Answer([[*encode("ok"), END]])])
    async with serve(engine, tool_parser="hermes") as server:
        reply = await ask(server, route, stream=stream, **NONE[route])
        assert "tool_use" not in str(reply)
        assert "tool_calls" not in str(reply)
        if not stream:
            said = reply["content"][0]["text"] if route == MESSAGES else reply["choices"][0]["message"]["content"]
            assert said == text
        await ask(server, route)
        plain, other = (request.prompt_ids.tolist() for request in engine.requests)
        assert plain == other  # the tools are in the prompt, whether they may be called or not


async def test_a_reply_without_calls_goes_on_as_one_row(serve, encode) -> None:
    text = f"So.\n{call(1)}"
    engine = FakeEngine([Answer([[*encode(text), END]]), Answer([[*encode("ok"), END]])])
    async with serve(engine, tool_parser="hermes") as server:
        await ask(server, CHAT, **NONE[CHAT])
        history = [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
        await ask(server, CHAT, messages=history)
        assert sampled(await only_sample(server)) == [*encode(text), END, *encode("ok"), END]


@pytest.mark.parametrize("policy", ["keep", "template"])
async def test_a_reply_that_was_cut_behind_its_call_is_closed_in_the_next_prompt(serve, encode, policy) -> None:
    kept = encode(f"I add.\n{call(1)}")
    engine = FakeEngine([Answer([[*kept, *encode(f"\n{call(2)}"), END]]), Answer([[*encode("1"), END]])])
    async with serve(engine, tool_parser="hermes", history_policy=policy) as server:
        first = await ask(server, MESSAGES, **ONE[MESSAGES])
        result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "one"}
        history = [
            *HELLO,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        await ask(server, MESSAGES, messages=history, **ONE[MESSAGES])
        one, two = (request.prompt_ids.tolist() for request in engine.requests)
        assert two[: len(one)] == one
        told = server.state.services.models.default.renderer.decode(two[len(one) :])
        assert told.startswith(f"I add.\n{call(1)}<|im_end|>\n<|im_start|>user\n<tool_response>\none\n</tool_response>")
        assert sampled(await only_sample(server)) == [*kept, *encode("1"), END]
