"""The neutral history as a protocol reads it: messages, and beside each the ids in it that we may have issued.

Results of tools come in runs, one run after each assistant message with calls; a run loses what it repeats (rule
``tool-result-repeat``) and is brought into the order of its calls (``tool-result-order``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapter.protocols.normalise import Normaliser
from adapter.protocols.reading import Fields
from adapter.types import Message, Normalised


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a history is up to a reply in it, the system prompt apart: a request with the same beginning goes on from here."""

    count: int
    """Messages of the wire."""
    messages: tuple[Message, ...]
    handles: tuple[tuple[str, ...], ...]
    calls: Mapping[str, int]
    call_count: int
    unused: tuple[str, ...]
    taken: tuple[Normalised, ...]


class CannotGoOn(Exception):
    """The beginning of a request means something else in this one, though it is the same: read all of it."""


class History:
    """Built in one pass. ``unused`` names what had no effect in it, ``continues`` is ``ChatRequest.continues``."""

    def __init__(self, normaliser: Normaliser) -> None:
        self.messages: list[Message] = []
        self.unused: list[str] = []
        self.continues = False
        self._normaliser = normaliser
        self._handles: list[tuple[str, ...]] = []
        self._calls: dict[str, int] = {}
        self._call_count = 0
        self._run: list[tuple[int, str]] = []
        self._run_first: Fields | None = None
        self._run_texts: set[tuple[int, str]] = set()
        self._begins = (0, 0)

    def begin_messages(self, known: Checkpoint | None) -> None:
        """The system prompt was read; the messages follow, those up to ``known`` left out."""
        self._begins = len(self.messages), len(self._normaliser.taken)
        if known is not None:
            self.messages += known.messages
            self._handles += known.handles
            self._calls, self._call_count = dict(known.calls), known.call_count
            self.unused += known.unused
            self._normaliser.taken += known.taken

    def checkpoint(self, count: int) -> Checkpoint:
        """Behind a reply, which ends every run of results; ``count`` messages of the wire were read."""
        messages, taken = self._begins
        return Checkpoint(
            count,
            tuple(self.messages[messages:]),
            tuple(self._handles[messages:]),
            dict(self._calls),
            self._call_count,
            tuple(self.unused),
            tuple(self._normaliser.taken[taken:]),
        )

    @property
    def handles(self) -> tuple[tuple[str, ...], ...]:
        """``ChatRequest.handles``."""
        return tuple(self._handles) if any(self._handles) else ()

    def add(self, message: Message, handles: Sequence[str] = ()) -> None:
        self.end_results()
        self.messages.append(message)
        self._handles.append(tuple(handles))

    def add_call(self, call_id: str) -> None:
        """A tool call of the message that will be added next. An id that came before now means this call."""
        self._calls[call_id] = self._call_count
        self._call_count += 1

    def add_result(self, call_id: str, text: str, fields: Fields) -> bool:
        """A result of a call; False, and nothing is added, if there is no such call."""
        if call_id not in self._calls:
            return False
        number = self._calls[call_id]
        if (number, text) in self._run_texts and self._normaliser.leaves_out_repeat(text, fields):
            return True
        if not self._run:
            self._run_first = fields
        self._run.append((number, call_id))
        self._run_texts.add((number, text))
        self.messages.append({"role": "tool", "content": text})
        self._handles.append(())
        return True

    def end_results(self) -> None:
        """The run of results is complete. Idempotent; to be called once more at the end."""
        if len(self._run) > 1 and self._run_first is not None:
            order = self._normaliser.result_order(self._run, self._run_first)
            if order is not None:
                results = self.messages[-len(order) :]
                self.messages[-len(order) :] = [results[index] for index in order]
        self._run = []
        self._run_texts = set()

    def continue_last(self, fields: Fields, name: str) -> None:
        """The last message, an assistant's that stands in the member ``name`` of ``fields``, is the beginning of the reply.

        An empty one begins nothing and is left out. Raises: BadRequest, if it holds tool calls: nothing can follow but results.
        """
        message, handles = self.messages[-1], self._handles[-1]
        if message.get("tool_calls"):
            raise fields.wrong(name, "ends in tool calls: their results must follow")
        self.continues = bool(message["content"] or message.get("reasoning_content") or handles)
        if not self.continues:
            self.messages.pop()
            self._handles.pop()

    def note(self, name: str) -> None:
        """``name`` is a field without effect."""
        if name not in self.unused:
            self.unused.append(name)


def last_index(items: Sequence[Any], wanted: Any) -> int:
    """-1 if it is not there."""
    return next((at for at in range(len(items) - 1, -1, -1) if items[at] == wanted), -1)
