"""OpenAI Chat Completions, the request: a body becomes a neutral ``ChatRequest``.

The reference is the official SDK's ``CompletionCreateParams``, plus the extensions of open-source servers:
``reasoning_content`` in assistant messages, ``chat_template_kwargs``, ``top_k``, ``min_tokens``, ``repetition_penalty``.
``developer`` is ``system``, content parts are flattened, results come in the order of their calls, call ids are checked and
dropped from the messages.

A trailing assistant message is followed by a new one, unless ``continue_final_message`` (vLLM) or its own ``prefix`` (DeepSeek,
Mistral) says that the reply goes on from it.

Refused by name, since nothing here can honour it: images, audio and files, alternatives to the sampled tokens
(``top_logprobs``), custom tools, the legacy functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adapter.protocols.arguments import read_arguments
from adapter.protocols.common import assistant_message, function_tool, join_parts, tool_call
from adapter.protocols.history import History
from adapter.protocols.knobs import (
    FOREIGN_KNOBS,
    MAX_CHOICES,
    SAMPLING_KNOBS,
    check_token_limits,
    read_json_schema,
    read_sampling,
    read_stop,
    refuse_knobs,
    unused_names,
)
from adapter.protocols.normalise import Normaliser
from adapter.protocols.openai_chat_choice import read_tool_choice
from adapter.protocols.reading import Fields, claim_name
from adapter.protocols.template_options import TemplateOptions
from adapter.types import ChatRequest, OutputFormat, Tool

_HONOURED_HERE = frozenset({"n", "logprobs", "continue_final_message", "add_generation_prompt"})

REFUSED: Mapping[str, Collection[Any]] = {
    **{name: idle for name, idle in FOREIGN_KNOBS.items() if name not in _HONOURED_HERE},
    **dict.fromkeys(
        (
            "audio", "prediction", "web_search_options", "moderation", "function_call", "stop_sequences", "max_output_tokens",
            "system", "instructions", "input", "prompt", "thinking", "enable_thinking", "output_config",
        ),
        (),
    ),
    "modalities": (["text"], []),
}  # fmt: skip

HONOURED = SAMPLING_KNOBS | _HONOURED_HERE | {
    "model", "messages", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options", "tools", "tool_choice",
    "parallel_tool_calls", "response_format", "reasoning_effort", "chat_template_kwargs",
}  # fmt: skip

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def parse_chat_request(body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
    """``without``: rules of ``normalise`` to leave out. Raises: BadRequest."""
    fields = Fields.of_body(body)
    refuse_knobs(fields, REFUSED)
    normaliser = Normaliser(without)
    history = _ChatHistory(normaliser)
    history.read(fields)
    sampling = read_sampling(fields)
    max_tokens = _read_max_tokens(fields)
    check_token_limits(fields, sampling, max_tokens)
    options = TemplateOptions()
    options.set_effort(fields, "reasoning_effort")
    options.set_explicit(fields)
    strict: dict[str, str] = {}
    taken: set[str] = set()
    tools = tuple(_read_tool(tool, strict, taken) for tool in fields.objects("tools"))
    return ChatRequest(
        messages=tuple(history.messages),
        continues=history.continues,
        tools=tools,
        tool_choice=read_tool_choice(fields, tools),
        strict_tools=strict,
        parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
        output_format=_read_output_format(fields, history),
        model=fields.text_or_none("model"),
        max_tokens=max_tokens,
        n=fields.integer_or_none("n", 1, MAX_CHOICES) or 1,
        log_probs=fields.flag("logprobs"),
        sampling=sampling,
        stop=read_stop(fields, "stop"),
        stream=fields.flag("stream"),
        include_usage=_read_include_usage(fields, history),
        template_options=options.values,
        option_fields=options.fields,
        handles=history.handles,
        normalised=tuple(normaliser.taken),
        unused_fields=(*unused_names(fields, HONOURED | REFUSED.keys()), *history.unused),
    )


def _read_include_usage(fields: Fields, history: History) -> bool:
    options = fields.object_or_none("stream_options")
    if options is None:
        return False
    refuse_knobs(options, {"continuous_usage_stats": (False,)})
    for name in unused_names(options, ("include_usage", "continuous_usage_stats")):
        history.note(f"stream_options.{name}")
    return options.flag("include_usage")


def _read_max_tokens(fields: Fields) -> int | None:
    """The smaller of the field's two names, where both are given."""
    limits = [fields.integer_or_none(name, 1) for name in ("max_completion_tokens", "max_tokens")]
    return min((limit for limit in limits if limit is not None), default=None)


class _ChatHistory(History):
    """Translates the wire's messages."""

    def read(self, fields: Fields) -> None:
        wire = fields.objects("messages")
        if not wire:
            raise fields.wrong("messages", "at least one message is required")
        for message in wire:
            self._read_message(message)
        self.end_results()
        self._read_continuation(fields, wire)
        if not self.messages:
            raise fields.wrong("messages", "must not be empty")
        if any(message.has("name") for message in wire):
            self.note("messages.name")

    def _read_continuation(self, fields: Fields, wire: list[Fields]) -> None:
        """Whether the reply goes on from the last message."""
        asked = fields.flag("continue_final_message")
        if asked and fields.flag("add_generation_prompt"):
            raise fields.wrong("add_generation_prompt", "must be false with continue_final_message")
        if asked and wire[-1].get("role") != "assistant":
            raise fields.wrong("continue_final_message", "the last message must be an assistant's")
        prefixed = [message for message in wire if message.flag("prefix")]
        if any(message is not wire[-1] or message.get("role") != "assistant" for message in prefixed):
            raise prefixed[0].wrong("prefix", "is for a last message that is an assistant's")
        if asked or prefixed:
            self.continue_last(fields, f"messages.{len(wire) - 1}")
        elif not fields.flag("add_generation_prompt", default=True):
            raise fields.wrong("add_generation_prompt", "must be true unless continue_final_message is")

    def _read_message(self, message: Fields) -> None:
        match message.text("role"):
            case "system" | "developer":
                self._read_system(message)
            case "user":
                self.add({"role": "user", "content": join_parts(_required_texts(message))})
            case "assistant":
                self._read_assistant(message)
            case "tool":
                text = join_parts(_required_texts(message))
                if not self.add_result(message.text("tool_call_id"), text, message):
                    raise message.wrong("tool_call_id", "no tool call before it has this id")
            case _:
                raise message.wrong("role", "must be system, developer, user, assistant or tool")

    def _read_system(self, message: Fields) -> None:
        texts = _required_texts(message)
        one = isinstance(message.get("content"), str)
        places = ["content" if one else f"content.{index}.text" for index in range(len(texts))]
        kept = [self._normaliser.system_text(text, message, place) for text, place in zip(texts, places, strict=True)]
        if any(kept) or not any(texts):
            self.add({"role": "system", "content": join_parts(kept)})

    def _read_assistant(self, message: Fields) -> None:
        for name in ("audio", "function_call"):
            if message.get(name) not in (None, False):
                raise message.wrong(name, "is not supported by this server")
        content = "".join(_texts(message)) or message.text_or_none("refusal") or ""
        wire_calls = message.objects("tool_calls")
        calls = [self._read_call(call) for call in wire_calls]
        handles = [call.name_text("id") for call in wire_calls]
        self.add(assistant_message(content, message.text_or_none("reasoning_content") or "", calls), handles)

    def _read_call(self, call: Fields) -> dict[str, Any]:
        if call.text_or_none("type") not in (None, "function"):
            raise call.wrong("type", "must be function")
        self.add_call(call.name_text("id"))
        function = call.object("function")
        return tool_call(function.name_text("name"), read_arguments(function))


def _required_texts(message: Fields) -> list[str]:
    if not message.has("content"):
        raise message.wrong("content", "is required: a string or an array of parts")
    return _texts(message)


def _texts(message: Fields) -> list[str]:
    """The text of each content part; a string is one part, null is none."""
    content = message.text_or_objects("content")
    if content is None or isinstance(content, str):
        return [content] if content else []
    return [_part_text(part) for part in content]


def _part_text(part: Fields) -> str:
    kind = part.text("type")
    if kind not in ("text", "refusal"):
        raise part.wrong("type", f"{kind[:64]!r} parts are not supported; only text is")
    return part.text(kind)


def _read_tool(tool: Fields, strict: dict[str, str], taken: set[str]) -> Tool:
    """``strict`` gets the name of a tool whose calls have to follow its schema, and the field that says so, ``taken`` all names."""
    kind = tool.text("type")
    if kind != "function":
        raise tool.wrong("type", f"{kind[:64]!r} tools are not supported; only function is")
    function = tool.object("function")
    claim_name(function, function.name_text("name"), taken)
    if function.flag("strict"):
        strict[function.name_text("name")] = function.at("strict")
    parameters = function.json_object_or_none("parameters")
    return function_tool(
        function.name_text("name"),
        function.text_or_none("description") or "",
        dict(_NO_PARAMETERS) if parameters is None else parameters,
    )


def _read_output_format(fields: Fields, history: History) -> OutputFormat | None:
    wanted = fields.object_or_none("response_format")
    if wanted is None:
        return None
    match wanted.text("type"):
        case "text":
            return None
        case "json_object":
            return OutputFormat(None, "response_format")
        case "json_schema":
            holder = wanted.object("json_schema")
            holder.flag("strict")  # followed in any case
            for name in unused_names(holder, ("schema", "strict")):
                history.note(f"response_format.json_schema.{name}")
            return OutputFormat(read_json_schema(holder, "schema"), "response_format")
        case _:
            raise wanted.wrong("type", "must be text, json_object or json_schema")
