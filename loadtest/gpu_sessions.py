"""Many sessions at once on one event loop: each some turns over Messages or Chat, streamed, then its export.

A turn that the time limit cuts is left, as an agent that goes away leaves it: the judge lets such a turn be trained once or not at
all. Nothing is sent again: an answer other than 200 is an error.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadtest.judge import Seen
from loadtest.recording import TurnRecord
from loadtest.speech import BadReply, Chat, Conversation, Messages, SseReader

PROTOCOLS: tuple[type[Conversation], ...] = (Messages, Chat)
SYSTEM = "You are agent {number}. Work on the task with the tools that you have, and say what you find. " * 8
QUESTION = "This is message {turn} of agent {number}: what does the file of this number say, and what comes next?"


@dataclass(frozen=True, slots=True)
class Plan:
    """``limit_s`` is for the turns of all sessions; a finish may take longer."""

    sessions: int
    turns: int
    max_tokens: int
    limit_s: float


@dataclass(slots=True)
class Held:
    """What one session's client saw. ``export`` is the text of the answer of finish; empty if there is none."""

    sid: str
    seen: list[Seen] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    export: str = ""


async def hold_sessions(url: str, plan: Plan) -> list[Held]:
    """All of them, begun at once."""
    ends_at = time.monotonic() + plan.limit_s
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as http:
        return await asyncio.gather(*(_session(http, number, plan, ends_at) for number in range(plan.sessions)))


async def finish_sessions(url: str, sessions: list[Held]) -> None:
    """Export each, one after the other."""
    async with aiohttp.ClientSession(url) as http:
        for held in sessions:
            async with http.post(f"/v1/sessions/{held.sid}/finish", json={"reward": 1.0}) as answer:
                held.export = await answer.text() if answer.status == 200 else ""


async def _session(http: aiohttp.ClientSession, number: int, plan: Plan, ends_at: float) -> Held:
    held, before = Held(f"gpu-check-{number}"), None
    conversation = PROTOCOLS[number % len(PROTOCOLS)](SYSTEM.format(number=number))
    for turn in range(plan.turns):
        conversation.say(QUESTION.format(turn=turn, number=number))
        record = TurnRecord(conversation.protocol, at=time.time())
        held.turns.append(record)
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + ends_at - time.monotonic()):
                reply = await _reply(http, held.sid, conversation, plan.max_tokens, record)
            conversation.keep()
        except TimeoutError:
            record.left = True
            break
        except (aiohttp.ClientError, BadReply, ValueError) as error:
            record.error = f"{type(error).__name__}: {error}"[:300]
            break
        held.seen.append(Seen(reply, before, said=""))
        before = reply
    return held


async def _reply(
    http: aiohttp.ClientSession, sid: str, conversation: Conversation, max_tokens: int, record: TurnRecord
) -> int:
    """Read to its end; gives the server's number of the turn. Raises: BadReply; ClientError."""
    conversation.begin()
    began = time.monotonic()
    body: dict[str, Any] = {**conversation.body(), "max_tokens": max_tokens}
    async with http.post(conversation.path, json=body, headers={"session-id": sid}) as answer:
        if answer.status != 200:
            raise BadReply(f"{answer.status} {(await answer.text())[:200]}")
        reader = SseReader()
        async for data in answer.content.iter_any():
            carried = [conversation.take(event) for event in reader.feed(data)]
            if any(carried):
                record.ttft_ms = record.ttft_ms or (time.monotonic() - began) * 1000
                record.pieces += 1
        record.turn_ms, record.output_tokens = (time.monotonic() - began) * 1000, conversation.output_tokens
        if not conversation.complete:
            raise BadReply("the stream ended before the reply")
        return int(answer.headers["x-rollserve-turn"])
