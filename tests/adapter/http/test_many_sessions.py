"""Many sessions at once over every protocol, clients that leave in the middle and ask again: nothing is lost or counts twice."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from engine.types import Finished, FinishReason, GenerateRequest, LogProbs, TokenChunk
from tests.adapter.http.conftest import Serve
from tests.support.engine import FakeEngine
from tests.support.raw import raw_request
from tests.support.server import TestServer
from tests.support.speakers import Asks, Chat, Entry, Gemini, Messages, Responses, Said, Settings, Speaker
from tests.support.wait import until

SESSIONS = 64
TURNS = 3
END = 151645
SETTINGS = Settings("Be brief.", (("look", "Looks.", {"type": "object"}),), max_tokens=64, temperature=1.0, seed=1)
SPEAKERS: Sequence[Speaker] = (Messages(), Chat(), Responses(), Gemini("slime-actor"))
RETRY = {"x-stainless-retry-count": "1"}


class Numbered(FakeEngine):
    """Every generation says its number, token by token."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        for token in [*self._encode(f"I say number {len(self.requests)}."), END]:
            await asyncio.sleep(0)
            finished = Finished(FinishReason.STOP, 0) if token == END else None
            log_probs: LogProbs = np.array([-0.5], np.float32)
            yield TokenChunk(np.array([token], np.int32), log_probs, 3, finished)


async def say(server: TestServer, sid: str, speaker: Speaker, entries: Sequence[Entry], dice: random.Random) -> Said:
    """The reply to ``entries``, from a client that leaves now and then, before or after the first byte, and asks again."""
    path, body = f"/s/{sid}{speaker.path}", speaker.body(SETTINGS, entries)
    for attempt in range(dice.choice((0, 0, 1, 2))):
        streamed = {**body, "stream": True} if isinstance(speaker, (Messages, Chat, Responses)) else body
        async with raw_request(server.url, path, streamed, RETRY if attempt else None) as client:
            for _ in range(dice.randrange(3)):
                await client.more()
                if client.complete or isinstance(speaker, Gemini):
                    break
            client.abort()
    async with server.http.post(path, json=body, headers=RETRY) as response:
        assert response.status == 200, await response.text()
        return speaker.read(await response.json())


async def converse(server: TestServer, sid: str, dice: random.Random, replies: list[str]) -> None:
    entries: list[Entry] = [Asks("begin")]
    for number in range(TURNS):
        said = await say(server, sid, dice.choice(SPEAKERS), entries, dice)
        replies.append(said.text)
        entries += [said, Asks(f"go on {number}")]


def trained_tokens(samples: Sequence[dict[str, Any]]) -> list[int]:
    """All rows', one after the other."""
    return [
        token
        for sample in samples
        for token, mask in zip(sample["tokens"][-sample["response_length"] :], sample["loss_mask"], strict=True)
        if mask
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_ledger_balances_and_every_complete_turn_is_trained_once(serve: Serve, encode, qwen, seed) -> None:
    engine, dice, replies = Numbered(encode), random.Random(seed), []
    names = [f"s{number}" for number in range(SESSIONS)]
    trained = ""
    async with serve(engine, tool_parser="hermes") as server:
        for sid in names:
            await server.http.post("/v1/sessions", json={"sid": sid})
        await asyncio.gather(*(converse(server, sid, random.Random(dice.random()), replies) for sid in names))
        for sid in names:
            await until(lambda sid=sid: not server.state.sessions.find(sid).in_flight)
            async with server.http.post(f"/v1/sessions/{sid}/finish") as response:
                answer = await response.json()
            ledger, tokens = answer["ledger"], trained_tokens(answer["samples"])
            assert ledger["sampled"] == ledger["trained"] + sum(ledger["dropped"].values())
            assert ledger["trained"] == len(tokens)
            trained += qwen.decode(tokens)
    times = Counter(re.findall(r"I say number \d+\.", trained))
    assert len(replies) == len(set(replies)) == SESSIONS * TURNS
    assert set(replies) <= times.keys()
    assert set(times.values()) == {1}
    assert len(engine.requests) > len(replies), "no client left in the middle"
