"""Agents that do not give up: each works through conversations in a session of its own, tries again whatever happens, and writes
down every reply that it saw complete."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import aiohttp

PAUSE_S = 0.2
"""Before a request is sent again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A reply that the client saw to its end."""

    turn: int
    reply_id: str
    text: str


@dataclass
class Agent:
    """One session. ``tries`` counts requests, ``broken`` those that did not end well."""

    sid: str
    url: str
    seen: list[Seen] = field(default_factory=list)
    tries: int = 0
    broken: int = 0

    async def run(self, until: asyncio.Event) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=60)) as http:
            await self._insist(http, "/v1/sessions", {"sid": self.sid}, fine=(201, 409))
            history: list[dict[str, str]] = []
            while not until.is_set():
                history.append({"role": "user", "content": f"question {len(history)} of {self.sid}"})
                reply = await self._turn(http, history)
                self.seen.append(reply)
                history.append({"role": "assistant", "content": reply.text})
                if len(history) > 16:
                    history = []

    async def finish(self) -> dict[str, object]:
        """The session's samples; asked for until there is an answer."""
        async with aiohttp.ClientSession() as http:
            return await self._insist(http, f"/v1/sessions/{self.sid}/finish", {"reward": 1.0}, fine=(200,))

    async def explain(self) -> list[dict[str, object]]:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{self.url}/v1/sessions/{self.sid}/explain") as response:
                return (await response.json())["turns"]

    async def _turn(self, http: aiohttp.ClientSession, history: list[dict[str, str]]) -> Seen:
        body = {"messages": history, "max_tokens": 64, "stream": True}
        retry = 0
        while True:
            self.tries += 1
            try:
                headers = {"x-stainless-retry-count": str(retry)}
                async with http.post(f"{self.url}/s/{self.sid}/v1/messages", json=body, headers=headers) as response:
                    if response.status == 200:
                        reply = _complete(await response.read(), int(response.headers["x-rollserve-turn"]))
                        if reply is not None:
                            return reply
            except (aiohttp.ClientError, TimeoutError):
                pass
            self.broken += 1
            retry += 1
            await asyncio.sleep(PAUSE_S)

    async def _insist(
        self, http: aiohttp.ClientSession, path: str, body: dict[str, object], fine: tuple[int, ...]
    ) -> dict[str, object]:
        while True:
            try:
                async with http.post(self.url + path, json=body) as response:
                    if response.status in fine:
                        return await response.json()
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(PAUSE_S)


def _complete(raw: bytes, turn: int) -> Seen | None:
    """The reply, if the stream came to its end."""
    events = [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: ")]
    if not events or events[-1]["type"] != "message_stop":
        return None
    deltas = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    return Seen(turn, events[0]["message"]["id"], "".join(deltas))
