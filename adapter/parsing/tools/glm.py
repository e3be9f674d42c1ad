"""The format of GLM-4.5, 4.6, 4.7 and 5:

    <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    ...
    </tool_call>

Source: the chat templates of zai-org/GLM-4.5 and GLM-4.6 (llama.cpp, ``models/templates/GLM-4.6.jinja``). GLM-4.7 writes no
newlines between the tags (SGLang, ``function_call/glm47_moe_detector.py``). All tags are tokens of the models' vocabularies.
Reasoning is ``<think>`` ... ``</think>``.

Strings stand as they are, everything else as JSON, so the tool's schema tells the type. White space between the tags is free, white
space in a value belongs to it. A value runs to the first ``</arg_value>``; another ``<arg_key>`` or ``<arg_value>`` before it means
that the markup is broken. ``parameter_block.py`` says when such a text is a call, and what becomes of broken ones.
"""

from __future__ import annotations

import re

from adapter.parsing.base import BLANK, ReplyContext, held_suffix
from adapter.parsing.markers import Markers
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.parameter_block import MAX_NAME, ParameterBlock
from adapter.parsing.tools.schema import ToolTypes
from adapter.parsing.tools.tagged import ANY, TAGS, TaggedCalls

KEY = "<arg_key>"
END_KEY = "</arg_key>"
VALUE = "<arg_value>"
END_VALUE = "</arg_value>"


def glm_calls(context: ReplyContext) -> TaggedCalls:
    """A parser for one reply."""
    types = ToolTypes.of(context.tools)
    return TaggedCalls(context.markers, {ANY: lambda: GlmCall(types, context.markers)})


GLM = ToolFamily(glm_calls, markers=(*TAGS, KEY, END_KEY, VALUE, END_VALUE), call_tags=TAGS)


class GlmCall(ParameterBlock):
    """One call."""

    def __init__(self, types: ToolTypes, markers: Markers) -> None:
        super().__init__(types, markers)
        self._key_tag, self._value_tag = markers.look(KEY), markers.look(VALUE)
        self._end_key, self._end_value_tag = markers.look(END_KEY), markers.look(END_VALUE)
        self._value_ends = (self._end_value_tag, self._key_tag, self._value_tag)
        self._name_end = re.compile(f"\n|{self._key_tag}|{self._opening}|{self._closing}")
        self._value_end = re.compile("|".join(self._value_ends))
        self._key_text = ""

    def _head(self, text: str) -> str:
        end = self._name_end.search(text)
        if end is None:
            return self._wait(text)
        if not self._name(text[: end.start()].strip(BLANK)):
            return self._refuse(text)
        self._step = self._body
        return self._take(text, text[end.start() :])

    def _body(self, text: str) -> str:
        rest = self._expect(text, {self._key_tag: self._key, self._closing: self._close})
        if self._step != self._close:
            return rest
        self._end()
        return self._close(rest)

    def _key(self, text: str) -> str:
        key, tag, rest = text.partition(self._end_key)
        if not tag:
            return self._wait(text)
        self._key_text = key.strip(BLANK)
        if len(key) > MAX_NAME or self._markers.spelled(key) != key:
            return self._broken(text)
        self._step = self._before_value
        return self._take(text, rest)

    def _before_value(self, text: str) -> str:
        rest = self._expect(text, {self._value_tag: self._value})
        if self._step == self._value:
            self._begin_value(self._key_text)
        return rest

    def _value(self, text: str) -> str:
        end = self._value_end.search(text)
        if end is None:
            free = len(text) - held_suffix(text, *self._value_ends)
            self._more_value(text[:free])
            self._held = text[free:]
            return ""
        self._more_value(text[: end.start()])
        if end.group() != self._end_value_tag:
            return self._broken(text[end.start() :])
        self._end_value(end.group())
        self._step = self._body
        return text[end.end() :]

    def _wait(self, text: str) -> str:
        """For the end of a name or a key."""
        if len(text) > MAX_NAME + len(END_KEY):
            return self._broken(text)
        self._held = text
        return ""
