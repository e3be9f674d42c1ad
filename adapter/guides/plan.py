"""From what a request demands of its reply to a grammar that the engine holds the reply to. Pure.

Demands: a forced call (``tool_choice``), a choice among fewer tools, strict tools, an output format. A grammar covers the whole
reply as the served model writes one: reasoning, free as ever, then what is demanded:

    forced            calls, and nothing else
    narrowed, strict  text and calls in any order; from where a call begins it is one that is allowed
    output format     JSON, or, where tools may be called, calls

Arguments of a forced call follow the tool's schema as far as llguidance knows its keywords; those of a strict tool follow it in
every keyword, and so does an output format, else the request is refused. Where the reply is JSON alone, the guide is the schema
itself; anything else is a grammar in Lark, in which structure tokens are named by id.

What cannot be met is refused with the field that asks for it: the engine offers no such guide, or nobody wrote down here how the
model's family writes calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from adapter.errors import BadRequest
from adapter.guides.arguments import ANY_OBJECT, NotWritable, Parameters
from adapter.guides.formats import CALL_FORMATS, CallFormat
from adapter.guides.lark import Lark
from adapter.parsing.base import BLANK
from adapter.parsing.choose import ParserChoice
from adapter.parsing.markers import Markers
from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.registry import require_tool_family
from adapter.types import ChatRequest, Tool, ToolChoiceMode
from engine.types import Guide, GuideKind

MAX_GUIDE_CHARACTERS = 256 * 1024
"""Of a grammar: it is sent with the request and compiled twice, before the headers and in the engine."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A part of the grammar that a client wrote: ``field`` asks that ``schema`` be followed."""

    field: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GuidePlan:
    """``demands`` are what may keep the guide from being compiled; ``field`` asked for it at all."""

    guide: Guide
    field: str
    demands: tuple[Demand, ...] = ()


def guide_for(
    request: ChatRequest, parsers: ParserChoice, markers: Markers, prompt_tail: str, offered: frozenset[GuideKind]
) -> GuidePlan | None:
    """The guide that ``request`` needs, None if it demands nothing.

    ``prompt_tail`` is the end of the rendered prompt, with stand-ins; ``offered`` what the engine can do. Raises: BadRequest.
    """
    asked_by = asking_field(request)
    if asked_by is None:
        return None
    if not offered:
        raise BadRequest("the engine has no guided decoding, so this cannot be ensured", field=asked_by)
    if request.continues:
        raise BadRequest("not possible in a reply that goes on from an assistant message", field=asked_by)
    writer = _Writer(request, asked_by, parsers, markers)
    reasoning = _Reasoning.of(parsers, markers, prompt_tail)
    plan = writer.schema_alone(reasoning, offered) or writer.grammar(reasoning, offered)
    if len(plan.guide.text) > MAX_GUIDE_CHARACTERS:
        size = f"{len(plan.guide.text)} characters, of at most {MAX_GUIDE_CHARACTERS}"
        raise BadRequest(f"the schemas make a grammar of {size}", field=asked_by)
    return plan


def asking_field(request: ChatRequest) -> str | None:
    """The first field that demands something. Where no call is allowed, strict tools demand nothing."""
    choice = request.tool_choice
    if choice.mode is ToolChoiceMode.REQUIRED or (choice.names and choice.mode is ToolChoiceMode.AUTO):
        return choice.field
    if request.output_format is not None:
        return request.output_format.field
    if choice.mode is ToolChoiceMode.NONE:
        return None
    return next((request.strict_tools[tool["function"]["name"]] for tool in _strict(request)), None)


def _strict(request: ChatRequest) -> Iterator[Tool]:
    for tool in _callable(request):
        if tool["function"]["name"] in request.strict_tools:
            yield tool


def _callable(request: ChatRequest) -> list[Tool]:
    """The tools that the reply may call."""
    choice = request.tool_choice
    if choice.mode is ToolChoiceMode.NONE:
        return []
    tools = (*request.tools, *request.deferred_tools)
    return [tool for tool in tools if not choice.names or tool["function"]["name"] in choice.names]


@dataclass(frozen=True, slots=True)
class _Reasoning:
    """Where the reply begins. Without tags there is no reasoning."""

    opening: str = ""
    closing: str = ""
    opened: bool = False
    """The prompt has opened it."""

    @classmethod
    def of(cls, parsers: ParserChoice, markers: Markers, prompt_tail: str) -> _Reasoning:
        family = require_reasoning_family(parsers.reasoning_parser)
        closed = family.closing and prompt_tail.rstrip(BLANK).endswith(markers.look(family.closing))
        if not family.opening or closed:
            return cls()
        return cls(family.opening, family.closing, family.opened_by(prompt_tail, markers))


class _Writer:
    """Writes the grammar of one request."""

    def __init__(self, request: ChatRequest, asked_by: str, parsers: ParserChoice, markers: Markers) -> None:
        self._request = request
        self._asked_by = asked_by
        self._family_name = parsers.tool_parser
        self._tools = _callable(request)
        self._is_forced = request.tool_choice.mode is ToolChoiceMode.REQUIRED
        self._lark = Lark({markers.spelled(look): token for token, look in markers.stand_ins.items()})
        self._demands: list[Demand] = []

    def schema_alone(self, reasoning: _Reasoning, offered: frozenset[GuideKind]) -> GuidePlan | None:
        """If the reply is to be JSON and nothing else, and the engine takes a schema: just that."""
        output = self._request.output_format
        if output is None or self._tools or reasoning.opening or GuideKind.JSON_SCHEMA not in offered:
            return None
        self._check_family()
        schema = self._demand(output.field, output.schema)
        return GuidePlan(Guide(GuideKind.JSON_SCHEMA, json.dumps(schema)), output.field, tuple(self._demands))

    def grammar(self, reasoning: _Reasoning, offered: frozenset[GuideKind]) -> GuidePlan:
        """Raises: BadRequest."""
        if GuideKind.LARK not in offered:
            raise self._refused("the engine's guided decoding is by schema alone, which is too little for this")
        self._check_family()
        start = f"{self._reasoning(reasoning)} {self._visible()}".strip()
        return GuidePlan(Guide(GuideKind.LARK, self._lark.text(start)), self._asked_by, tuple(self._demands))

    def _check_family(self) -> None:
        if not isinstance(require_tool_family(self._family_name), ToolFamily):
            raise self._refused(f"this server cannot hold replies in the format {self._family_name} to a grammar")

    def _reasoning(self, reasoning: _Reasoning) -> str:
        """The rule of the reasoning with what stands around it; optional unless the prompt has opened it."""
        if not reasoning.opening:
            return ""
        thought = self._lark.up_to(reasoning.closing)
        blank = self._lark.pattern(r"\n{0,2}")
        if reasoning.opened:
            return f"{thought} {blank}"
        return f"({self._lark.literal(reasoning.opening)} {thought} {blank})?"

    def _visible(self) -> str:
        """What follows the reasoning."""
        if self._is_forced:
            return self._calls(self._call_format())
        output = self._request.output_format
        if output is not None:
            answer = self._lark.json(self._demand(output.field, output.schema))
            return f"({self._calls(self._call_format())} | {answer})" if self._tools else answer
        return self._text_and_calls(self._call_format())

    def _calls(self, calls: CallFormat) -> str:
        """Calls and nothing else."""
        call = self._lark.rule(self._call(calls, calls.before_name))
        more = f"({self._lark.literal(calls.separator)} {call})*" if self._request.parallel_tool_calls else ""
        return f"{self._lark.literal(calls.opens)} {call} {more} {self._lark.literal(calls.closes)}"

    def _text_and_calls(self, calls: CallFormat) -> str:
        """Text that may turn into calls, and back."""
        if not calls.trigger:
            raise self._refused(f"in the format {self._family_name} calls cannot be told from text")
        text, head = self._lark.text_without(calls.trigger), self._lark.up_to(calls.trigger)
        if calls.opens:
            called = self._calls(replace(calls, opens=calls.opens.removeprefix(calls.trigger)))
        else:
            called = self._call(calls, calls.before_name.removeprefix(calls.trigger))
        once = self._lark.rule(f"{head} {called}")
        return f"{once}* {text}" if self._request.parallel_tool_calls else f"({once} | {text})"

    def _call(self, calls: CallFormat, before_name: str) -> str:
        """One call of any tool that may be called."""
        by_tool = [f"{self._head(tool, calls, before_name)} {self._arguments(tool, calls)}" for tool in self._tools]
        return f"({' | '.join(by_tool)}) {self._lark.literal(calls.after_arguments)}"

    def _head(self, tool: Tool, calls: CallFormat, before_name: str) -> str:
        """What stands before a call's arguments."""
        name: str = tool["function"]["name"]
        named = before_name + (json.dumps(name, ensure_ascii=False) if calls.name_is_json else name)
        if not calls.after_name:
            return self._lark.literal(named + calls.before_arguments)
        after = self._lark.pattern(calls.after_name)
        return f"{self._lark.literal(named)} {after} {self._lark.literal(calls.before_arguments)}"

    def _arguments(self, tool: Tool, calls: CallFormat) -> str:
        """The tool's own schema if it is strict, as far as it is known if the call is forced, else any object."""
        function = tool["function"]
        schema: Mapping[str, Any] = {**ANY_OBJECT, **function.get("parameters", {})}
        asked_by = self._request.strict_tools.get(function["name"])
        if asked_by is not None:
            schema = self._demand(asked_by, schema)
        if calls.parameters is not None:
            return self._parameters(Parameters(self._lark, calls.parameters, tool), schema, asked_by)
        if asked_by is None and not self._is_forced:
            return self._lark.json(ANY_OBJECT)
        return self._lark.json(schema, lenient=asked_by is None)

    def _parameters(self, parameters: Parameters, schema: Mapping[str, Any], asked_by: str | None) -> str:
        if asked_by is None and not self._is_forced:
            return parameters.any()
        try:
            return parameters.following(schema, lenient=asked_by is None)
        except NotWritable as error:
            raise BadRequest(f"in the format {self._family_name}: {error}", field=asked_by) from error

    def _demand(self, field: str, schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """A schema to be followed in every keyword; none is any object. Options for the compiler are ours to set."""
        own = ANY_OBJECT if schema is None else {name: value for name, value in schema.items() if name != "x-guidance"}
        self._demands.append(Demand(field, own))
        return own

    def _call_format(self) -> CallFormat:
        """Raises: BadRequest, if how the family writes calls is not written down."""
        if not self._tools:
            raise self._refused("there is no tool that could be called")
        if self._family_name not in CALL_FORMATS:
            raise self._refused(f"this server cannot force or check a tool call in the format {self._family_name}")
        return CALL_FORMATS[self._family_name]

    def _refused(self, reason: str) -> BadRequest:
        return BadRequest(reason, field=self._asked_by)
