"""OpenAI Responses, the request: a body becomes a neutral ``ChatRequest``.

The reference is the official SDK's ``ResponseCreateParams``; ``openai_responses_items`` reads the input and
``openai_responses_tools`` the tools. What belongs to the HTTP side (``previous_response_id``, ``store``, ``background``) is
honoured there: by the time that a body comes here, its input holds the whole conversation.

Refused by name, since nothing here can honour it: server-side conversations and prompts, truncation of the input, limits on
calls of hosted tools, images, audio and files, hosted tools, log probs of the text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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
from adapter.protocols.openai_responses_items import ResponsesHistory
from adapter.protocols.openai_responses_tools import ResponsesTools, WireTool
from adapter.protocols.reading import MAX_DEPTH, Fields, deeper_than
from adapter.protocols.template_options import TemplateOptions
from adapter.types import ChatRequest, OutputFormat

REFUSED: Mapping[str, Collection[Any]] = {
    **{name: values for name, values in FOREIGN_KNOBS.items() if name != "top_logprobs"},
    **dict.fromkeys(
        (
            "messages", "max_tokens", "max_completion_tokens", "stop_sequences", "system", "thinking", "enable_thinking",
            "response_format", "output_config", "functions", "function_call", "conversation", "prompt", "max_tool_calls",
            "context_management", "moderation", "background_options",
        ),
        ([],),
    ),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
}  # fmt: skip

HONOURED = SAMPLING_KNOBS | {
    "model", "input", "instructions", "max_output_tokens", "stop", "stream", "tools", "tool_choice", "parallel_tool_calls",
    "text", "reasoning", "include", "metadata", "store", "background", "previous_response_id", "chat_template_kwargs",
}  # fmt: skip

_DESCRIBING = ("prompt_cache_key", "safety_identifier", "user")
"""Members that describe the client; they have no effect, and replies repeat them."""

_TOOL_LEVELS = 5
"""Levels above the schema of a tool: the tools, a namespace, its tools, a tool, its parameters."""

LOG_PROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ResponsesContext:
    """What a reply needs of its request (``ChatRequest.reply_context``)."""

    tools: Mapping[str, WireTool]
    """By the name that the model was shown."""
    repeated: Mapping[str, Any]
    """Members of the response object that are the request's own."""

    @classmethod
    def of(cls, request: ChatRequest | None) -> ResponsesContext:
        """That of a request that was read here; the defaults, where there is none."""
        context = request.reply_context if request is not None else None
        return context if isinstance(context, cls) else cls({}, _repeated(Fields({})))


def parse_responses_request(body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
    """``without``: rules of ``normalise`` to leave out. Raises: BadRequest."""
    fields = Fields.of_body(body)
    refuse_knobs(fields, REFUSED)
    normaliser = Normaliser(without)
    tools = ResponsesTools.read(fields)
    history = ResponsesHistory(normaliser)
    history.read(fields)
    sampling = read_sampling(fields)
    max_tokens = fields.integer_or_none("max_output_tokens", 1)
    _check_include(fields)
    check_token_limits(fields, sampling, max_tokens)
    unused = [*unused_names(fields, HONOURED | REFUSED.keys()), *tools.unused, *history.unused]
    output_format = _read_text(fields, unused)
    options = _read_reasoning(fields, unused)
    return ChatRequest(
        messages=tuple(history.messages),
        tools=tuple(tools.shown),
        tool_choice=tools.choice(fields),
        strict_tools=tools.strict,
        parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
        output_format=output_format,
        model=fields.text_or_none("model"),
        max_tokens=max_tokens,
        sampling=sampling,
        stop=read_stop(fields, "stop"),
        stream=fields.flag("stream"),
        template_options=options.values,
        option_fields=options.fields,
        handles=history.handles,
        normalised=tuple(normaliser.taken),
        reply_context=ResponsesContext(tools.wire, _repeated(fields)),
        unused_fields=tuple(unused),
    )


def _read_text(fields: Fields, unused: list[str]) -> OutputFormat | None:
    """``text``: the format of the output."""
    text = fields.object_or_none("text")
    if text is None:
        return None
    unused.extend(f"text.{name}" for name in unused_names(text, ("format",)))
    form = text.object_or_none("format")
    if form is None:
        return None
    match form.text("type"):
        case "text":
            return None
        case "json_object":
            return OutputFormat(None, "text.format")
        case "json_schema":
            form.flag("strict")  # followed in any case
            unused.extend(f"text.format.{name}" for name in unused_names(form, ("type", "schema", "strict")))
            return OutputFormat(read_json_schema(form, "schema"), "text.format")
        case _:
            raise form.wrong("type", "must be text, json_object or json_schema")


def _read_reasoning(fields: Fields, unused: list[str]) -> TemplateOptions:
    """What ``reasoning`` is for the template."""
    options = TemplateOptions()
    reasoning = fields.object_or_none("reasoning")
    if reasoning is not None:
        options.set_effort(reasoning, "effort")
        unused.extend(f"reasoning.{name}" for name in unused_names(reasoning, ("effort",)))
    options.set_explicit(fields)
    return options


def _check_include(fields: Fields) -> None:
    """Encrypted content is always there, and what hosted tools would add cannot be missed where there are none of them."""
    if LOG_PROBS in fields.texts("include"):
        raise fields.wrong("include", f"{LOG_PROBS} is not supported; Chat Completions reports log probs (logprobs)")


def _repeated(fields: Fields) -> dict[str, Any]:
    """Members of the response object that are taken from the request, with the official API's defaults."""
    for name in ("tools", "tool_choice"):
        if deeper_than(MAX_DEPTH + _TOOL_LEVELS, fields.get(name)):
            raise fields.wrong(name, f"must not nest deeper than {MAX_DEPTH} levels")
    metadata = fields.json_object_or_none("metadata") or {}
    if not all(isinstance(value, str) for value in metadata.values()):
        raise fields.wrong("metadata", "values must be strings")
    text, reasoning = fields.json_object_or_none("text") or {}, fields.json_object_or_none("reasoning") or {}
    return {
        "background": fields.flag("background"),
        "instructions": fields.text_or_none("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": metadata,
        "parallel_tool_calls": fields.flag("parallel_tool_calls", default=True),
        "previous_response_id": fields.text_or_none("previous_response_id"),
        **{name: fields.text_or_none(name) for name in _DESCRIBING},
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "service_tier": "default",
        "store": fields.flag("store", default=True),
        "temperature": fields.get("temperature"),
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_logprobs": 0,
        "top_p": fields.get("top_p"),
        "truncation": "disabled",
    }
