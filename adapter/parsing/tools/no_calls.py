"""Replies that may hold no calls though tools are offered: what the model writes of a call is visible text.

A family's markup stays as it was written. Where the parser reads the whole reply, reasoning included, the markup is gone by then: a
call is shown as the JSON object ``{"name": NAME, "arguments": {...}}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from adapter.parsing.base import ReplyParser
from adapter.parsing.tools.family import ToolFamily, WholeReplyFamily
from adapter.types import ReplyEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart


def without_calls(family: ToolFamily | WholeReplyFamily) -> ToolFamily | WholeReplyFamily:
    """``family`` for a reply without calls."""
    if isinstance(family, WholeReplyFamily):
        return WholeReplyFamily(
            lambda context: CallsAsText(family.parser(context)), family.markers, family.shows_end_token
        )
    return ToolFamily(lambda context: TextOnly(), family.markers, family.shows_end_token)


class TextOnly:
    """A ``ToolParser`` that knows no calls."""

    ill_formed = False

    def feed(self, text: str) -> list[ReplyEvent]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[ReplyEvent]:
        return []


class CallsAsText:
    """A ``ReplyParser`` whose calls are text."""

    ill_formed = False

    def __init__(self, parser: ReplyParser) -> None:
        self._parser = parser

    @property
    def inside(self) -> bool:
        return self._parser.inside

    @property
    def settled(self) -> bool:
        return self._parser.settled

    def feed(self, text: str) -> list[ReplyEvent]:
        return self._shown(self._parser.feed(text))

    def finish(self) -> list[ReplyEvent]:
        return self._shown(self._parser.finish())

    def _shown(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        return [_as_text(event) for event in events]


def _as_text(event: ReplyEvent) -> ReplyEvent:
    match event:
        case ToolCallStart(name):
            return TextDelta(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')
        case ToolCallDelta(arguments):
            return TextDelta(arguments)
        case ToolCallEnd():
            return TextDelta("}")
        case _:
            return event
