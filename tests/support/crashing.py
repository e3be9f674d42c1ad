"""Servers that die (``dying_server``), and a client that knows what it was told before they did."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.power import lose_page_cache
from tests.support.processes import assert_gone


@dataclass
class Conversation:
    """What a client knows of one session. ``cut``: the reply to its last request did not come to its end."""

    replies: list[str] = field(default_factory=list)
    cut: bool = False
    finish: Any = None
    dropped: bool = False

    def messages(self) -> list[dict[str, Any]]:
        history = [_user(1)]
        for number, text in enumerate(self.replies, start=2):
            history += [{"role": "assistant", "content": text}, _user(number)]
        return history


@dataclass
class Client:
    """Talks until the server is gone."""

    url: str
    sessions: dict[str, Conversation] = field(default_factory=dict)

    async def until_gone(self, talk: Callable[[aiohttp.ClientSession], Any]) -> None:
        async with aiohttp.ClientSession(self.url) as http:
            try:
                await talk(http)
            except aiohttp.ClientError:
                return
        raise AssertionError("the server lives")

    async def open(self, http: aiohttp.ClientSession, sid: str) -> Conversation:
        self.sessions[sid] = Conversation()
        async with http.post("/v1/sessions", json={"sid": sid}) as response:
            assert response.status == 201
        return self.sessions[sid]

    async def ask(self, http: aiohttp.ClientSession, sid: str) -> None:
        known = self.sessions[sid]
        known.cut, text = True, b""
        body = {"messages": known.messages(), "stream": True, "model": "slime-actor"}
        async with http.post(f"/s/{sid}/v1/messages", json=body) as response:
            assert response.status == 200
            async for line in response.content:
                text += line
        assert b"message_stop" in text
        known.cut = False
        known.replies.append(text_of(text))

    async def finish(self, http: aiohttp.ClientSession, sid: str) -> None:
        async with http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
            self.sessions[sid].finish = await response.json()

    async def drop(self, http: aiohttp.ClientSession, sid: str) -> None:
        async with http.delete(f"/v1/sessions/{sid}"):
            self.sessions[sid].dropped = True


def _user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"turn {number}"}


def text_of(stream: bytes) -> str:
    """Of a reply of the Messages protocol."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


@dataclass
class Crash:
    """Start a server, and see it end."""

    nursery: subprocess.Popen[str]
    journal: Path

    async def start(self, point: str | None, **settings: Any) -> tuple[int, Client]:
        assert self.nursery.stdin is not None and self.nursery.stdout is not None
        order = {"journal": str(self.journal), "point": point, "settings": settings}
        self.nursery.stdin.write(json.dumps(order) + "\n")
        self.nursery.stdin.flush()
        told = json.loads(await asyncio.to_thread(self.nursery.stdout.readline))
        return told["pid"], Client(told["url"])

    def end(self, pid: int, *, kill: bool = False, power: bool = True) -> None:
        if kill:
            os.kill(pid, signal.SIGKILL)
        assert_gone([pid])
        if power:
            lose_page_cache(self.journal / "000001")
