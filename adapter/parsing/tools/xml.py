"""The XML format of Qwen3-Coder and Qwen3.5, and the fallback when no parser is configured:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>

Source: the chat templates of Qwen3-Coder (vLLM, ``examples/tool_chat_template_qwen3coder.jinja``) and of Qwen3.5, which writes
calls the same way behind ``<think>`` ... ``</think>`` (vLLM, pull request 35687). Numbers, ``True``, ``False`` and ``None`` are as
Python writes them, objects and arrays are JSON.

White space between the tags is free; one newline at each end of a value belongs to the tags. A value has no quotes: its type comes
from the tool's schema. A value runs to the first ``</parameter>``; if another parameter or the end of the call comes before, a
closing tag was left out and the markup isn't whole. The closing ``</tool_call>`` may be missing at the very end of a reply, and
anywhere where it is a token. ``parameter_block.py`` says when such a text is a call, and what becomes of broken ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from adapter.parsing.base import BLANK, ReplyContext, held_suffix
from adapter.parsing.markers import Markers
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.parameter_block import MAX_NAME, ParameterBlock
from adapter.parsing.tools.schema import ToolTypes
from adapter.parsing.tools.tagged import TAGS, CallBlock, TaggedCalls

FUNCTION = "<function="
END_FUNCTION = "</function>"
PARAMETER = "<parameter="
END_PARAMETER = "</parameter>"
MAX_BLANK = 16
"""White space between the closing tags of function and call, in characters, where that tells a value without end."""

_NAME = re.compile(rf"([^<>\n\ud800-\udfff]{{1,{MAX_NAME}}})>")
_NAME_BEGUN = re.compile(rf"[^<>\n\ud800-\udfff]{{0,{MAX_NAME}}}")


def xml_calls(context: ReplyContext) -> TaggedCalls:
    """A parser for one reply."""
    return TaggedCalls(context.markers, {"<": xml_block(context)})


XML = ToolFamily(xml_calls, markers=TAGS, call_tags=TAGS)
XML_FALLBACK = ToolFamily(xml_calls, markers=TAGS, shows_end_token=True, closers=TAGS[1:])


def xml_block(context: ReplyContext) -> Callable[[], CallBlock]:
    types = ToolTypes.of(context.tools)
    return lambda: XmlCall(types, context.markers)


class XmlCall(ParameterBlock):
    """One call."""

    def __init__(self, types: ToolTypes, markers: Markers) -> None:
        super().__init__(types, markers)
        end_of_call = rf"{END_FUNCTION}[{BLANK}]{{0,{MAX_BLANK}}}{self._closing}"
        self._value_end = re.compile(f"\n?{END_PARAMETER}|{PARAMETER}|{end_of_call}")
        self._longest_end = len(END_FUNCTION) + MAX_BLANK + len(self._closing)

    def _head(self, text: str) -> str:
        return self._expect(text, {FUNCTION: self._function_name})

    def _function_name(self, text: str) -> str:
        name = _NAME.match(text)
        if name is None:
            return self._without_name(text)
        if not self._name(name[1]):
            return self._refuse(text)
        self._step = self._body
        return self._take(text, text[name.end() :])

    def _body(self, text: str) -> str:
        rest = self._expect(text, {PARAMETER: self._parameter_name, END_FUNCTION: self._tail})
        if self._step == self._tail:
            self._end()
        return rest

    def _parameter_name(self, text: str) -> str:
        name = _NAME.match(text)
        if name is None:
            return self._without_name(text)
        rest = self._take(text, text[name.end() :])
        self._begin_value(name[1])
        self._step = self._value_begin
        return rest

    def _value_begin(self, text: str) -> str:
        self._step = self._value
        return self._take(text, text.removeprefix("\n"))

    def _value(self, text: str) -> str:
        end = self._value_end.search(text)
        if end is None:
            free = len(text) - self._held_of_value(text)
            self._more_value(text[:free])
            self._held = text[free:]
            return ""
        self._more_value(text[: end.start()])
        if not end.group().endswith(END_PARAMETER):
            return self._broken(text[end.start() :])
        self._end_value(end.group())
        self._step = self._body
        return text[end.end() :]

    def _held_of_value(self, text: str) -> int:
        """How many of the last characters may be the beginning of what ends the value."""
        begin = text.rfind(END_FUNCTION, max(0, len(text) - self._longest_end))
        behind = text[begin + len(END_FUNCTION) :].lstrip(BLANK)
        if begin != -1 and self._closing.startswith(behind):
            return len(text) - begin
        return held_suffix(text, "\n" + END_PARAMETER, END_PARAMETER, PARAMETER, END_FUNCTION)

    def _tail(self, text: str) -> str:
        word = text.lstrip(BLANK)
        if word.startswith(self._closing):
            return self._close(word.removeprefix(self._closing))
        self._take(text, word)
        if self._closing.startswith(word):
            self._held = word
            return ""
        return self._close(word) if self._certain else self._refuse(word)

    def _without_name(self, text: str) -> str:
        """There is no name and ``>``, or not yet."""
        if not _NAME_BEGUN.fullmatch(text):
            return self._broken(text)
        self._held = text
        return ""
