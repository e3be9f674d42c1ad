"""The XML format of Qwen3-Coder, and the fallback when no parser is configured:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>

A reply that spells this may well be prose about it, so it is a call only if it names a tool of the request and its markup is whole;
anything else stays visible text, untouched. Since that is known only at the end, a call is held back until it is complete.

White space between the tags is free; one newline at each end of a value belongs to the tags. A value has no quotes: its type comes
from the tool's schema. A value runs to the first ``</parameter>``; if another parameter or the end of the call comes before, a
closing tag was left out and the markup isn't whole. The closing ``</tool_call>`` may be missing at the very end of a reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.markers import Markers
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.schema import ToolTypes
from adapter.parsing.tools.tagged import CLOSE, TAGS, BlockState, TaggedCalls
from adapter.types import ReplyEvent, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse

FUNCTION = "<function="
END_FUNCTION = "</function>"
PARAMETER = "<parameter="
END_PARAMETER = "</parameter>"
MAX_NAME = 256
"""Characters of the name of a function or a parameter."""
MAX_BLANK = 16
"""White space between the closing tags of function and call, in characters, where that tells a value without end."""

_NAME = re.compile(rf"([^<>\n\ud800-\udfff]{{1,{MAX_NAME}}})>")
_NAME_BEGUN = re.compile(rf"[^<>\n\ud800-\udfff]{{0,{MAX_NAME}}}")
_LONGEST_VALUE_END = len(END_FUNCTION) + MAX_BLANK + len(CLOSE)


def xml_calls(context: ReplyContext) -> TaggedCalls:
    """A parser for one reply."""
    return TaggedCalls(context.markers, {"<": xml_block(context)})


XML = ToolFamily(xml_calls, markers=TAGS, call_tags=TAGS)
XML_FALLBACK = ToolFamily(xml_calls, markers=TAGS, shows_end_token=True, closers=TAGS[1:])


def xml_block(context: ReplyContext) -> Callable[[], XmlCall]:
    types = ToolTypes.of(context.tools)
    return lambda: XmlCall(types, context.markers)


class XmlCall:
    """One call, a ``CallBlock``."""

    def __init__(self, tools: ToolTypes, markers: Markers) -> None:
        self.state = BlockState.RUNNING
        self._spelled = markers.spelled
        self._closing = markers.look(CLOSE)
        end_of_call = rf"{END_FUNCTION}[{BLANK}]{{0,{MAX_BLANK}}}{self._closing}"
        self._value_end = re.compile(f"{END_PARAMETER}|{PARAMETER}|{end_of_call}")
        self.literal = ""
        self.rest = ""
        self.ill_formed = False
        self._tools = tools
        self._taken: list[str] = []
        self._held = ""
        self._name = ""
        self._key = ""
        self._value: list[str] = []
        self._input: dict[str, Any] = {}
        self._step: Callable[[str], str] = self._head

    def feed(self, text: str) -> list[ReplyEvent]:
        rest, self._held = self._held + text, ""
        while rest and self.state is BlockState.RUNNING:
            rest = self._step(rest)
        if self.state is BlockState.CLOSED:
            return self._events()
        return []

    def finish(self) -> list[ReplyEvent]:
        if self._step == self._tail and self._closing.startswith(self._held):
            self.state = BlockState.CLOSED
            return self._events()
        self._refuse(self._held)
        return []

    def _events(self) -> list[ReplyEvent]:
        use = ToolUse(self._name, self._input)
        return [ToolCallStart(use.name), ToolCallDelta(orjson.dumps(use.input).decode()), ToolCallEnd(use)]

    # A step takes text from the front and gives back what is left to deal with, "" when that is nothing or the rest is held.

    def _head(self, text: str) -> str:
        return self._expect(text, {FUNCTION: self._function_name})

    def _function_name(self, text: str) -> str:
        name = self._tag_name(text)
        if name is None:
            return ""
        if not self._tools.knows(name):
            return self._refuse(text)
        self._name = name
        self._step = self._body
        return self._take(text, text[len(name) + 1 :])

    def _body(self, text: str) -> str:
        return self._expect(text, {PARAMETER: self._parameter_name, END_FUNCTION: self._tail})

    def _parameter_name(self, text: str) -> str:
        name = self._tag_name(text)
        if name is None:
            return ""
        self._key = name
        self._step = self._parameter_value
        return self._take(text, text[len(name) + 1 :])

    def _parameter_value(self, text: str) -> str:
        end = self._value_end.search(text)
        if end is None:
            kept = max(0, len(text) - _LONGEST_VALUE_END)
            self._value.append(text[:kept])
            self._held = text[kept:]
            return ""
        if end.group() != END_PARAMETER:
            return self._refuse(text)
        self._value.append(text[: end.start()])
        self._end_value()
        return text[end.end() :]

    def _end_value(self) -> None:
        text = "".join(self._value)
        self._value.clear()
        self._taken += [text, END_PARAMETER]
        trimmed = self._spelled(text.removeprefix("\n").removesuffix("\n"))
        self._input[self._key] = self._tools.value(self._name, self._key, trimmed)
        self._step = self._body

    def _tail(self, text: str) -> str:
        word = text.lstrip(BLANK)
        if word.startswith(self._closing):
            self.state = BlockState.CLOSED
            self.rest = word.removeprefix(self._closing)
            return ""
        self._take(text, word)
        if self._closing.startswith(word):
            self._held = word
            return ""
        return self._refuse(word)

    def _expect(self, text: str, markers: dict[str, Callable[[str], str]]) -> str:
        """Take white space and one of ``markers``, and go to its step."""
        word = text.lstrip(BLANK)
        self._take(text, word)
        for marker, step in markers.items():
            if word.startswith(marker):
                self._step = step
                return self._take(word, word.removeprefix(marker))
            if marker.startswith(word):
                self._held = word
                return ""
        return self._refuse(word)

    def _tag_name(self, text: str) -> str | None:
        """The name before ``>``; None if it is not complete yet (the text is held) or there is none (it is refused)."""
        match = _NAME.match(text)
        if match is not None:
            return match[1]
        if _NAME_BEGUN.fullmatch(text):
            self._held = text
        else:
            self._refuse(text)
        return None

    def _take(self, text: str, rest: str) -> str:
        self._taken.append(text[: len(text) - len(rest)])
        return rest

    def _refuse(self, rest: str) -> str:
        """``rest`` is looked at again, and so is a value that has no end: it may hold a call."""
        self.state = BlockState.REFUSED
        self.literal = "".join(self._taken)
        self.rest = "".join(self._value) + rest
        self.ill_formed = bool(self._name)
        return ""
