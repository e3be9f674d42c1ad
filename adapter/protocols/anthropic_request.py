"""Anthropic Messages, the request: a body becomes a neutral ``ChatRequest``.

The reference is the official SDK's ``MessageCreateParams``, beta fields included. Refused by name, since nothing here can honour
it: images, documents and server tools, server-side edits of the history. ``thinking.budget_tokens`` is listed as of no effect: it
guides a model that knows of it, and clients send it always.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adapter.protocols.anthropic_history import MessagesHistory
from adapter.protocols.anthropic_reply import ThinkingDisplay
from adapter.protocols.anthropic_tools import read_tool_choice, read_tools
from adapter.protocols.history import Checkpoint
from adapter.protocols.knobs import (
    FOREIGN_KNOBS,
    SAMPLING_KNOBS,
    check_token_limits,
    read_json_schema,
    read_sampling,
    read_stop,
    refuse_knobs,
    unused_names,
)
from adapter.protocols.normalise import Normaliser
from adapter.protocols.reading import Fields
from adapter.protocols.template_options import TemplateOptions
from adapter.types import ChatRequest, OutputFormat

REFUSED: Mapping[str, Collection[Any]] = {
    **FOREIGN_KNOBS,
    **dict.fromkeys(
        (
            "container", "mcp_servers", "thread", "compaction", "stop", "max_completion_tokens",
            "response_format", "function_call", "enable_thinking", "prompt",
        ),
        ([],),
    ),
    "parallel_tool_calls": (True,),
}  # fmt: skip

HONOURED = SAMPLING_KNOBS | {
    "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "thinking", "output_config", "output_format",
    "context_management", "tools", "tool_choice", "chat_template_kwargs",
}  # fmt: skip

_THINKING_TYPES = {"enabled": True, "adaptive": True, "disabled": False, "between_tools": False}
"""``between_tools``: no thinking but notes between calls, which are something that no model here writes."""


def parse_messages_request(
    body: Mapping[str, Any], without: Collection[str] = (), known: Checkpoint | None = None
) -> ChatRequest:
    """``without``: rules of ``normalise`` to leave out. ``known`` is what stands before the messages of ``body``.

    Raises: BadRequest; CannotGoOn.
    """
    fields = Fields.of_body(body)
    refuse_knobs(fields, REFUSED)
    normaliser = Normaliser(without)
    tools = read_tools(fields)
    history = MessagesHistory(normaliser, tools)
    checkpoint = history.read(fields, known)
    tool_choice, parallel = read_tool_choice(fields, tools)
    sampling = read_sampling(fields)
    max_tokens = fields.integer_or_none("max_tokens", 1)
    check_token_limits(fields, sampling, max_tokens)
    unused = [*unused_names(fields, HONOURED | REFUSED.keys()), *history.unused]
    options = _read_template_options(fields, unused)
    _check_context_management(fields, unused)
    return ChatRequest(
        messages=tuple(history.messages),
        continues=history.continues,
        tools=tuple(tools.head),
        deferred_tools=tuple(tools.deferred),
        tool_choice=tool_choice,
        strict_tools=tools.strict,
        parallel_tool_calls=parallel,
        output_format=_read_output_format(fields),
        model=fields.text_or_none("model"),
        max_tokens=max_tokens,
        sampling=sampling,
        stop=read_stop(fields, "stop_sequences"),
        stream=fields.flag("stream"),
        template_options=options.values,
        option_fields=options.fields,
        handles=history.handles,
        normalised=tuple(normaliser.taken),
        reply_context=_read_display(fields),
        checkpoint=checkpoint,
        unused_fields=tuple(unused),
    )


def _read_template_options(fields: Fields, unused: list[str]) -> TemplateOptions:
    """What ``thinking`` and the effort are for the template. Raises: BadRequest."""
    options = TemplateOptions()
    output = fields.object_or_none("output_config")
    if output is not None:
        options.set_effort(output, "effort")
        unused.extend(f"output_config.{name}" for name in unused_names(output, ("format", "effort")))
    thinking = fields.object_or_none("thinking")
    if thinking is not None:
        kind = thinking.text("type")
        if kind not in _THINKING_TYPES:
            raise thinking.wrong("type", f"must be one of {', '.join(_THINKING_TYPES)}")
        options.set_thinking(_THINKING_TYPES[kind], thinking.at("type"))
        thinking.integer_or_none("budget_tokens", 1)
        unused.extend(f"thinking.{name}" for name in unused_names(thinking, ("type", "display")))
    options.set_explicit(fields)
    return options


def _read_display(fields: Fields) -> ThinkingDisplay | None:
    """How the reply shows its thinking. The progress notes that ``updates`` shows are something that no model here writes."""
    thinking = fields.object_or_none("thinking")
    display = None if thinking is None else thinking.text_or_none("display")
    if thinking is None or display is None:
        return None
    if display not in ("summarized", "omitted", "updates"):
        raise thinking.wrong("display", "must be one of summarized, omitted, updates")
    return ThinkingDisplay.FULL if display == "summarized" else ThinkingDisplay.OMITTED


def _read_output_format(fields: Fields) -> OutputFormat | None:
    """``output_config.format``, or ``output_format`` as the first clients with this feature write it."""
    config = fields.object_or_none("output_config")
    for holder, name in ((config, "format"), (fields, "output_format")):
        wanted = None if holder is None else holder.object_or_none(name)
        if wanted is not None:
            if wanted.text("type") != "json_schema":
                raise wanted.wrong("type", "must be json_schema")
            return OutputFormat(read_json_schema(wanted, "schema"), wanted.path)
    return None


def _check_context_management(fields: Fields, unused: list[str]) -> None:
    """Edits of the history by the server are refused, except the one that keeps everything, which Claude Code sends."""
    management = fields.object_or_none("context_management")
    if management is None:
        return
    for edit in management.objects("edits"):
        keep = edit.get("keep")
        keeps_all = keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all")
        if not (edit.text("type").startswith("clear_thinking") and keeps_all):
            raise edit.wrong(
                "type", "this server does not edit the history; only clear_thinking with keep: all is accepted"
            )
    unused.append("context_management")
