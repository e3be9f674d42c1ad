"""The agent: a conversation over HTTP, and what a judge has to know of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import aiohttp
import orjson

from tests.support.simulated_client import chat, messages, responses
from tests.support.simulated_client.entries import Entry, Head, Reminder, Reply, Results, Said, Thought
from tests.support.simulated_client.profile import Dialect, Profile, Thinking
from tests.support.sse import data_objects

TURN_HEADER = "x-rollserve-turn"

_WIRES = {Dialect.MESSAGES: messages, Dialect.CHAT: chat, Dialect.RESPONSES: responses}

Path = tuple[int, ...]
"""The numbers of a head and of the entries after it: what a request said, whatever it looked like on the wire."""


class History(StrEnum):
    """What the client did to the replies in a request's history."""

    NONE = "none"
    """There are none."""
    KEPT = "kept"
    """The newest reply was given after the very entries that stand before it now, the head included."""
    SEEN = "seen"
    """Not so, but an earlier request had the same entries up to the newest reply."""
    CHANGED = "changed"
    """Edited, or moved behind other entries."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was answered, by the server's number of its turn."""

    turn: int
    path: Path
    ancestor: int | None
    """The newest turn that it continues: the same head and the same entries stood before that turn's reply."""
    relative: int | None
    """The same, whatever the head was."""
    history: History
    carried: bool
    """Each reply in its history was sent with an id of the server's."""


class Agent:
    """One conversation of one program. ``base`` is the session's URL."""

    def __init__(self, http: aiohttp.ClientSession, base: str, profile: Profile, seed: int = 0) -> None:
        self.profile = profile
        self.asked: list[Asked] = []
        self.entries: list[Entry] = []
        self._http = http
        self._base = base
        self._random = random.Random(seed)
        self._numbers = 0
        self._paths: dict[int, Path] = {}
        self.head = Head(self._number(), None, {})
        self._heads = [self.head]

    @property
    def replies(self) -> list[int]:
        """Where the replies of the present conversation stand in ``entries``."""
        return [index for index, entry in enumerate(self.entries) if isinstance(entry, Reply)]

    def set_head(self, system: str | None, tools: Mapping[str, Mapping[str, Any]]) -> None:
        """Equal heads have equal numbers."""
        head = Head(self._number(), system, tools)
        known = (each for each in self._heads if (each.system, each.tools) == (system, tools))
        self.head = next(known, head)
        self._heads.append(self.head)

    def say(self, text: str, reminder: str | None = None) -> None:
        """Answer the calls of the last reply, or speak as the user. ``reminder`` is for programs that add some."""
        last = self.entries[-1] if self.entries else None
        if isinstance(last, Reply) and last.calls:
            self._run_tools(last, text)
        else:
            self.entries.append(Said(self._number(), f"({self._numbers}) {text}"))
        if reminder is not None and self.profile.reminders:
            self.entries.append(Reminder(self._number(), reminder))

    def _run_tools(self, reply: Reply, text: str) -> None:
        calls = [call.call_id for call in reply.calls]
        completed = self._random.sample(calls, len(calls))
        number = self._number()
        results = [(call_id, f"({number}.{calls.index(call_id)}) {text}") for call_id in completed]
        self.entries.append(Results(number, results, calls))

    async def ask(self) -> Reply:
        """Send the conversation; the reply joins it. Raises: AssertionError, if the server refuses."""
        wire = _WIRES[self.profile.dialect]
        body = wire.write(self.head, self.entries, self.profile, self._random)
        async with self._http.post(self._base + wire.PATH, json=body) as response:
            raw = await response.read()
            assert response.status == 200, raw
            turn = int(response.headers[TURN_HEADER])
        parts = wire.read_stream(data_objects(raw)) if self.profile.stream else wire.read_whole(orjson.loads(raw))
        reply = Reply(self._number(), turn, tuple(parts))
        self._remember(turn)
        self.entries.append(reply)
        return reply

    async def retry(self) -> Reply:
        """The last request again; its new reply takes the old one's place."""
        assert isinstance(self.entries[-1], Reply)
        self.entries.pop()
        return await self.ask()

    def go_back(self, index: int) -> None:
        """Forget what came after the entry at ``index``."""
        del self.entries[index + 1 :]

    def edit(self, index: int) -> None:
        """Change what an entry says."""
        entry, number = self.entries[index], self._number()
        match entry:
            case Said() | Reminder():
                self.entries[index] = replace(entry, number=number, text=f"{entry.text} (edit {number})")
            case Results(completed=completed):
                edited = [(call_id, f"(edit {number}) {text}") for call_id, text in completed]
                self.entries[index] = replace(entry, number=number, completed=edited)
            case Reply(parts=parts):
                text = "".join(part for part in parts if isinstance(part, str))
                thoughts = [part for part in parts if isinstance(part, Thought)]
                self.entries[index] = Reply(number, None, (*thoughts, f"(edit {number}) {text}", *entry.calls))

    def truncate(self, index: int) -> None:
        """Forget what came before the entry at ``index``."""
        del self.entries[:index]

    def _remember(self, turn: int) -> None:
        path = (self.head.number, *(entry.number for entry in self.entries))
        replies = [entry for entry in self.entries if isinstance(entry, Reply)]
        self.asked.append(
            Asked(
                turn=turn,
                path=path,
                ancestor=self._continued(path, replies),
                relative=self._continued(path, replies, whatever_head=True),
                history=self._history(path, replies),
                carried=all(self._carries(reply) for reply in replies),
            )
        )
        self._paths[turn] = path

    def _history(self, path: Path, replies: Sequence[Reply]) -> History:
        if not replies:
            return History.NONE
        newest = replies[-1]
        if newest.turn is not None and newest.turn == self._continued(path, replies):
            return History.KEPT
        known = path[: path.index(newest.number, 1) + 1]
        seen = any(request.path[: len(known)] == known for request in self.asked)
        return History.SEEN if seen else History.CHANGED

    def _continued(self, path: Path, replies: Sequence[Reply], *, whatever_head: bool = False) -> int | None:
        """The newest turn that was given after the very entries that stand before it now."""
        first = int(whatever_head)
        for reply in reversed(replies):
            before = path[first : path.index(reply.number, 1)]
            if reply.turn is not None and self._paths[reply.turn][first:] == before:
                return reply.turn
        return None

    def _carries(self, reply: Reply) -> bool:
        """Whether an id of the server's is sent with a reply."""
        signed = any(isinstance(part, Thought) and part.signature for part in reply.parts)
        return bool(reply.calls) or (signed and self.profile.thinking is not Thinking.DROPPED)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
