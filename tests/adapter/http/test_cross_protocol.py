"""One conversation over each protocol, and over two in turn: the same ids go to the engine, the same samples come out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.engine import Answer, FakeEngine
from tests.support.server import TestServer
from tests.support.speakers import Asks, Chat, Entry, Gemini, Messages, Responses, Results, Said, Settings, Speaker

SPEAKERS: dict[str, Speaker] = {
    "messages": Messages(),
    "chat": Chat(),
    "responses": Responses(),
    "gemini": Gemini("slime-actor"),
}
END = 151645
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}, "required": ["b"]}
SETTINGS = Settings(
    system="Be brief.\n\nAnd be right.",
    tools=(("look", "Look it up — 查", SCHEMA), ("now", "", {"type": "object", "properties": {}})),
    max_tokens=500,
    temperature=0.7,
    seed=11,
)
CALLS = (
    '<tool_call>\n{"name": "look", "arguments": {"b": "史莱姆",  "a": 1.50}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
REPLIES = (
    f"<think>\nWhat is soft?\n\nI look.\n</think>\n\nI look it up.\n{CALLS}",
    "<think>\nSo it is.\n</think>\n\nIt is soft.",
    "You are welcome.",
)


def answers(encode: Any) -> list[Answer]:
    """Three replies, token by token, each token with a log prob of its own."""
    made = []
    for number, text in enumerate(REPLIES):
        ids = [*encode(text), END]
        made.append(Answer([[token] for token in ids], log_probs=[-number - at / 64 for at in range(1, len(ids) + 1)]))
    return made


async def converse(server: TestServer, speakers: Sequence[Speaker], sid: str = "s") -> list[Said]:
    """The whole conversation, its turns over ``speakers`` in this order; what each of them said."""
    entries: list[Entry] = [Asks("How soft is slime?")]
    said: list[Said] = []
    for speaker in speakers:
        body = speaker.body(SETTINGS, entries)
        async with server.http.post(f"/s/{sid}{speaker.path}", json=body) as response:
            assert response.status == 200, await response.text()
            said.append(speaker.read(await response.json()))
        results = tuple((call, f"result of {call.name}") for call in said[-1].calls)
        entries += [said[-1], Results(results) if results else Asks("Thanks.")]
    return said


async def recorded(server: TestServer, sid: str = "s") -> dict[str, Any]:
    async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
        assert response.status == 200
        return await response.json()


async def run(serve: Any, encode: Any, speakers: Sequence[Speaker]) -> tuple[FakeEngine, list[Said], dict[str, Any]]:
    engine = FakeEngine(answers(encode))
    async with serve(engine, tool_parser="hermes", reasoning_parser="think") as server:
        async with server.http.post("/v1/sessions", json={"sid": "s"}) as response:
            assert response.status == 201
        said = await converse(server, speakers)
        return engine, said, await recorded(server)


def content(said: Said) -> tuple[Any, ...]:
    return said.thinking, said.text, [(call.name, call.arguments) for call in said.calls]


@pytest.fixture
async def expected(serve, encode) -> tuple[FakeEngine, list[Said], dict[str, Any]]:
    """The conversation over Messages."""
    return await run(serve, encode, [SPEAKERS["messages"]] * 3)


async def test_the_conversation_is_what_it_should_be(expected, encode) -> None:
    engine, said, export = expected
    assert content(said[0]) == (
        "What is soft?\n\nI look.",
        "I look it up.",
        [("look", {"b": "史莱姆", "a": 1.5}), ("now", {})],
    )
    assert [content(reply)[:2] for reply in said[1:]] == [("So it is.", "It is soft."), ("", "You are welcome.")]
    (sample,) = export["samples"]
    outputs = [[*encode(text), END] for text in REPLIES]
    trained = np.array(sample["tokens"][-sample["response_length"] :])[np.array(sample["loss_mask"], bool)]
    assert trained.tolist() == list(itertools.chain(*outputs))
    for request, output in zip(engine.requests, outputs, strict=True):
        whole = [*request.prompt_ids.tolist(), *output]
        assert sample["tokens"][: len(whole)] == whole


@pytest.mark.parametrize("first", SPEAKERS)
@pytest.mark.parametrize("second", SPEAKERS)
async def test_every_protocol_gives_the_same_samples(serve, encode, expected, first, second) -> None:
    """Alone, and started over one protocol and gone on with over another."""
    engine, said, export = expected
    speakers = [SPEAKERS[first], SPEAKERS[second], SPEAKERS[first]]
    other_engine, other_said, other_export = await run(serve, encode, speakers)
    for request, other in zip(engine.requests, other_engine.requests, strict=True):
        assert other.prompt_ids.tolist() == request.prompt_ids.tolist()
        assert (other.sampling, other.max_tokens) == (request.sampling, request.max_tokens)
    assert [content(reply) for reply in other_said] == [content(reply) for reply in said]
    (sample,), (other_sample,) = export["samples"], other_export["samples"]
    for member in ("tokens", "loss_mask", "rollout_log_probs", "response", "response_length", "reward", "status"):
        assert other_sample[member] == sample[member], member
    assert other_export["ledger"] == export["ledger"]
