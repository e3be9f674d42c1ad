"""Thinking that a client does not want to see: it stays in the prompt and in the record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import Answer, FakeEngine
from tests.support.sse import events_of

MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
END = 151645
THOUGHT = "<think>\nA secret plan.\n</think>\n\nSo be it."


async def say(server: Any, messages: list[dict[str, Any]], display: str | None, *, stream: bool = False) -> Any:
    body = {"messages": messages, "thinking": {"type": "adaptive", "display": display}, "stream": stream}
    async with server.http.post(MESSAGES, json=body) as response:
        assert response.status == 200, await response.text()
        return events_of(await response.read()) if stream else await response.json()


def answers(encode: Any) -> list[Answer]:
    return [Answer([[token] for token in [*encode(text), END]]) for text in (THOUGHT, "Done.")]


@pytest.mark.parametrize("display", ["omitted", "updates"])
async def test_omitted_thinking_is_a_block_without_text(serve, encode, display) -> None:
    async with serve(FakeEngine(answers(encode)), reasoning_parser="think") as server:
        content = (await say(server, HELLO, display))["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]
    assert content[0]["thinking"] == ""
    assert content[0]["signature"]
    assert content[1]["text"] == "So be it."


async def test_omitted_thinking_streams_its_signature_only(serve, encode) -> None:
    async with serve(FakeEngine(answers(encode)), reasoning_parser="think") as server:
        events = await say(server, HELLO, "omitted", stream=True)
    assert "secret" not in str(events)
    of_block = [data for _, data in events if data.get("index") == 0]
    assert [data["type"] for data in of_block] == ["content_block_start", "content_block_delta", "content_block_stop"]
    assert of_block[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert of_block[1]["delta"]["type"] == "signature_delta"
    usage = next(data for name, data in events if name == "message_delta")["usage"]
    assert usage["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize("display", [None, "summarized"])
async def test_thinking_is_shown_otherwise(serve, encode, display) -> None:
    async with serve(FakeEngine(answers(encode)), reasoning_parser="think") as server:
        assert (await say(server, HELLO, display))["content"][0]["thinking"] == "A secret plan."


@pytest.mark.parametrize("stream", [True, False])
async def test_the_turn_is_found_again_by_its_signature(serve, encode, stream) -> None:
    engine = FakeEngine(answers(encode))
    async with serve(engine, reasoning_parser="think") as server:
        first = await say(server, HELLO, "omitted")
        history = [*HELLO, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "go on"}]
        await say(server, history, "omitted", stream=stream)
        one, two = (request.prompt_ids.tolist() for request in engine.requests)
        sampled = [*encode(THOUGHT), END]
        assert two[: len(one) + len(sampled)] == [*one, *sampled]
        async with server.http.post("/v1/sessions/default/finish", json={}) as response:
            answer = await response.json()
    assert answer["ledger"]["trained"] == answer["ledger"]["sampled"]
    assert len(answer["samples"]) == 1


async def test_fields_that_set_what_the_template_does_not_read_are_listed(serve, encode) -> None:
    async with serve(FakeEngine(answers(encode)), reasoning_parser="think") as server:
        body = {
            "messages": HELLO,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "low"},
            "chat_template_kwargs": {"style": "x"},
        }
        async with server.http.post(MESSAGES, json=body) as response:
            assert response.headers["x-rollserve-unused-fields"].split(",") == [
                "thinking.budget_tokens",
                "output_config.effort",
                "thinking.type",
                "chat_template_kwargs.style",
            ]


async def test_an_option_that_the_template_does_not_read_forks_nothing(serve, encode) -> None:
    engine = FakeEngine(answers(encode))
    async with serve(engine, reasoning_parser="think") as server:
        first = await say(server, HELLO, None)
        history = [*HELLO, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "go on"}]
        async with server.http.post(MESSAGES, json={"messages": history}) as response:
            assert response.headers["x-rollserve-match"] == "exact"
