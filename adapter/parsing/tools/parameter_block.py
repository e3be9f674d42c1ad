"""A block (``tagged.py``) whose arguments are written one by one, and what its formats share.

Where the tags are only text, a reply that spells a call may well be prose about it: it is a call only if it names a tool of the
request and its markup is whole; anything else stays visible text, untouched. Since that is known only at the end, such a call is
held back until it is complete.

Where ``<tool_call>`` is a token, the call is certain once it names a tool of the request, and is passed on as it arrives, from its
first parameter on. Markup that breaks after that leaves every parameter null (``ill_formed``), and what follows up to
``</tool_call>`` is not shown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from adapter.parsing.base import BLANK
from adapter.parsing.markers import Markers
from adapter.parsing.tools.parameters import ParameterCall
from adapter.parsing.tools.schema import ToolTypes
from adapter.parsing.tools.tagged import OPEN, BlockState, CallBlock
from adapter.types import ReplyEvent

MAX_NAME = 256
"""Characters of the name of a function or a parameter."""


class ParameterBlock(CallBlock):
    """One call. Subclasses say by their steps how it is written."""

    def __init__(self, types: ToolTypes, markers: Markers) -> None:
        super().__init__(markers)
        self._types = types
        self._certain = self._opening != OPEN
        self._call: ParameterCall | None = None
        self._ended = False
        """All parameters are there."""
        self._events: list[ReplyEvent] = []
        self._taken: list[str] = []
        """All text so far, while it may still turn out to be no call."""
        self._value_from: int | None = None
        """Where in it the value begins that is being read."""
        self._step: Callable[[str], str] = self._head

    def feed(self, text: str) -> list[ReplyEvent]:
        rest, self._held = self._held + text, ""
        while rest and self.state is BlockState.RUNNING:
            rest = self._step(rest)
        return self._release()

    def finish(self) -> list[ReplyEvent]:
        if self._ended:
            self._close("")
        else:
            self._broken(self._held)
            if self.state is BlockState.RUNNING:
                self._close("")
        return self._release()

    @abstractmethod
    def _head(self, text: str) -> str:
        """The first step: up to the name of the function, which it gives to ``_name``.

        A step takes text from the front and gives back what is left to deal with, "" when that is nothing or the rest is held.
        """

    @property
    def _running(self) -> ParameterCall:
        assert self._call is not None
        return self._call

    @property
    def _started(self) -> bool:
        return self._certain and self._call is not None and self._call.started

    def _release(self) -> list[ReplyEvent]:
        """The events that are certain."""
        if self._started:
            self._taken.clear()
        elif self.state is not BlockState.CLOSED:
            return []
        events, self._events = self._events, []
        return events

    def _name(self, name: str) -> bool:
        """Whether ``name`` is that of a tool; then the call is there."""
        if self._types.knows(name):
            self._call = ParameterCall(name, self._types)
        return self._call is not None

    def _begin_value(self, key: str) -> None:
        self._events += self._running.begin(key)
        self._value_from = len(self._taken)

    def _more_value(self, text: str) -> None:
        self._taken.append(text)
        self._events += self._running.add(self._markers.spelled(text))

    def _end_value(self, tag: str) -> None:
        self._taken.append(tag)
        self._events += self._running.close()
        self._value_from = None

    def _end(self) -> None:
        self._events += self._running.end()
        self._ended = True

    def _take(self, text: str, rest: str) -> str:
        self._taken.append(text[: len(text) - len(rest)])
        return rest

    def _expect(self, text: str, steps: dict[str, Callable[[str], str]]) -> str:
        """Take white space and one of the markers in ``steps``, and go to its step."""
        word = text.lstrip(BLANK)
        self._take(text, word)
        for marker, step in steps.items():
            if word.startswith(marker):
                self._step = step
                return self._take(word, word.removeprefix(marker))
        if any(marker.startswith(word) for marker in steps):
            self._held = word
            return ""
        return self._broken(word)

    def _broken(self, rest: str) -> str:
        """The text cannot go on like this with ``rest``."""
        if not self._started:
            return self._refuse(rest)
        if self._step != self._skip:
            self._events += self._running.break_off()
            self.ill_formed = True
            self._step = self._skip
        return rest

    def _refuse(self, rest: str) -> str:
        """It is no call. ``rest`` is looked at again, and so is a value that has no end: it may hold a call."""
        self.state = BlockState.REFUSED
        self.literal = "".join(self._taken[: self._value_from])
        self.rest = ("" if self._value_from is None else "".join(self._taken[self._value_from :])) + rest
        self.ill_formed = self._call is not None
        self._events.clear()
        return ""
