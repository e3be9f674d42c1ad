"""Calls in Python's syntax: ``[NAME(a=1, b="x"), NAME()]``, or one ``NAME(a=1)`` without the brackets.

It may as well be prose (a list of things, a link of Markdown), so it is one of calls only if the first names an offered tool and
goes on as a call does: up to its first ``name=``, or to what follows ``NAME()``. Calls behind the first may name any tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from adapter.parsing.base import BLANK
from adapter.parsing.tools.call_object import ObjectState
from adapter.parsing.tools.python_arguments import PythonArguments
from adapter.parsing.tools.streamed import StreamedCall
from adapter.types import ReplyEvent

MAX_NAME = 256
"""Characters of a tool's name."""
METHOD = ".call"
"""Llama 3.1 calls built-in tools by a method: ``brave_search.call(query="x")``."""

_NAME = re.compile(r"[^\W\d][\w.\-]*")


class PythonicCalls:
    """The calls of a list, or one call (``listed`` false); same use as ``CallObject``."""

    def __init__(self, offered: Collection[str], listed: bool = True) -> None:
        self.state = ObjectState.RUNNING
        self.literal = ""
        """What a list that was REFUSED took of the text."""
        self.ill_formed = False
        self._offered = offered
        self._listed = listed
        self._any_started = False
        self._call = StreamedCall()
        self._arguments = PythonArguments()
        self._withheld = ""
        """The end of the first call's JSON, if it has no arguments: only what follows it tells whether it is a call."""
        self._held = ""
        self._taken: list[str] = []
        self._step: Callable[[str, list[ReplyEvent]], str] = self._open if listed else self._name

    def feed(self, text: str) -> tuple[list[ReplyEvent], str]:
        """The events, and what is left of the text once the state is no longer RUNNING."""
        events: list[ReplyEvent] = []
        rest, self._held = self._held + text, ""
        while rest and self.state is ObjectState.RUNNING:
            rest = self._step(rest, events)
        self._any_started = self._any_started or self._call.started
        self._note(text, rest)
        return events, rest

    def finish(self) -> list[ReplyEvent]:
        """No more text comes."""
        events: list[ReplyEvent] = []
        if self._step == self._after and not self._listed:
            self._end_call(events)
            self.state = ObjectState.CLOSED
        else:
            self._broken(events)
            self._note("", "")
        return events

    def _note(self, text: str, rest: str) -> None:
        if self._any_started:
            self._taken.clear()
            return
        self._taken.append(text)
        if self.state is ObjectState.REFUSED:
            taken = "".join(self._taken)
            self.literal = taken[: len(taken) - len(rest)]

    # A step takes text from the front, adds events, and gives back what is left: "" when that is nothing or the rest is held.

    def _open(self, text: str, events: list[ReplyEvent]) -> str:
        self._step = self._name
        return text[1:]

    def _name(self, text: str, events: list[ReplyEvent]) -> str:
        word = text.lstrip(BLANK)
        match = _NAME.match(word)
        end = match.end() if match else 0
        if not word or (end == len(word) and end <= MAX_NAME):
            self._held = word
            return ""
        name = word[:end].removesuffix(METHOD)
        if end > MAX_NAME or word[end] != "(" or not name or not (self._any_started or name in self._offered):
            self._broken(events)
            return word
        self._call = StreamedCall(name)
        self._arguments = PythonArguments()
        self._step = self._in_arguments
        return word[end + 1 :]

    def _in_arguments(self, text: str, events: list[ReplyEvent]) -> str:
        fragment, rest = self._arguments.feed(text)
        if self._arguments.done and not (self._arguments.has_argument or self._any_started):
            self._withheld = fragment
        else:
            events += self._call.add(fragment)
        if self._arguments.failed:
            self._broken(events)
        elif self._arguments.done:
            if self._call.started:
                events += self._call.end()
            self._step = self._after
        return rest

    def _after(self, text: str, events: list[ReplyEvent]) -> str:
        word = text.lstrip(BLANK)
        if not word:
            return ""
        if not self._listed:
            self._end_call(events)
            self.state = ObjectState.CLOSED
            return word
        if word[0] not in ",]":
            self._broken(events)
            return word
        self._end_call(events)
        if word[0] == "]":
            self.state = ObjectState.CLOSED
        self._step = self._name
        return word[1:]

    def _end_call(self, events: list[ReplyEvent]) -> None:
        if not self._call.ended:
            events += [*self._call.add(self._withheld), *self._call.end()]
        self._any_started = True

    def _broken(self, events: list[ReplyEvent]) -> None:
        if not (self._any_started or self._call.started):
            self.state = ObjectState.REFUSED
            return
        self.ill_formed = True
        self.state = ObjectState.BROKEN
        if self._call.started and not self._call.ended:
            events += self._call.add(self._arguments.break_off())
            events += self._call.end()
