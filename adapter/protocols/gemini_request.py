"""Gemini, the request: a body of ``generateContent`` becomes a neutral ``ChatRequest``.

The reference is the Gemini API's ``GenerateContentRequest`` and google-genai's types. ``model`` and ``stream`` are put into the
body by the route, which has them in its path. Knobs of the model's output stand in ``generationConfig``; whatever stands there is
honoured or refused. The sampling knobs of other servers (``min_tokens``, ``repetition_penalty``) are read there too.

Refused by name: images, audio and files, Google's own tools, cached contents, other outputs than text, the likeliest tokens
(``logprobs``). ``thinkingBudget`` above 0 is listed as of no effect: it guides a model that knows of it, and gemini-cli
sends it always.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from adapter.protocols.gemini_fields import ProtoFields
from adapter.protocols.gemini_history import GeminiHistory
from adapter.protocols.gemini_reply import ThoughtDisplay
from adapter.protocols.gemini_schema import read_schema
from adapter.protocols.gemini_tools import read_calling, read_tools
from adapter.protocols.knobs import (
    FOREIGN_KNOBS,
    MAX_CHOICES,
    SAMPLING_KNOBS,
    check_token_limits,
    read_sampling,
    read_stop,
    refuse_knobs,
)
from adapter.protocols.normalise import Normaliser
from adapter.protocols.reading import Fields
from adapter.protocols.template_options import TemplateOptions
from adapter.types import ChatRequest, OutputFormat

_THINKING = "generationConfig.thinkingConfig"

REFUSED: Mapping[str, Collection[Any]] = {
    **FOREIGN_KNOBS,
    **dict.fromkeys(
        (
            "cached_content", "continuation_token", "model_armor_config", "messages", "input", "prompt", "system",
            "instructions",
        ),
        ([], {}, ""),
    ),
}  # fmt: skip

HONOURED = frozenset(
    ("model", "stream", "contents", "system_instruction", "tools", "tool_config", "generation_config", "chat_template_kwargs")
)  # fmt: skip

CONFIG_HONOURED = SAMPLING_KNOBS | {
    "max_output_tokens", "stop_sequences", "response_mime_type", "response_schema", "response_json_schema", "thinking_config",
    "response_modalities", "candidate_count", "response_logprobs", "logprobs",
}  # fmt: skip

_CONFIG_UNUSED = frozenset(("media_resolution", "audio_timestamp"))
"""Only say how media are read, of which there are none."""

_JSON = "application/json"


def parse_generate_request(body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
    """``without``: rules of ``normalise`` to leave out. Raises: BadRequest."""
    fields = ProtoFields(Fields.of_body(body).values)
    refuse_knobs(fields, REFUSED)
    normaliser = Normaliser(without)
    unused = fields.unused(HONOURED | REFUSED.keys())
    tools = read_tools(fields, unused)
    choice, strict_tools = read_calling(fields, tools)
    history = GeminiHistory(normaliser)
    history.read(fields)
    config = _read_config(fields.object_or_none("generation_config") or ProtoFields({}, fields, "generation_config"))
    explicit = TemplateOptions()
    explicit.set_explicit(fields)
    return ChatRequest(
        messages=tuple(history.messages),
        continues=history.continues,
        tools=tools,
        tool_choice=choice,
        strict_tools=strict_tools,
        output_format=config.output_format,
        model=_model_name(fields),
        max_tokens=config.max_tokens,
        n=config.candidates,
        log_probs=config.log_probs,
        sampling=config.sampling,
        stop=config.stop,
        stream=fields.flag("stream"),
        template_options=config.options.values | explicit.values,
        option_fields=config.options.fields | explicit.fields,
        handles=history.handles,
        normalised=tuple(normaliser.taken),
        reply_context=config.display,
        unused_fields=(*unused, *config.unused, *history.unused),
    )


def _model_name(fields: ProtoFields) -> str | None:
    """A resource name, ``models/NAME``, or the name alone."""
    name = fields.text_or_none("model")
    return None if name is None else name.removeprefix("models/")


@dataclass(frozen=True, slots=True)
class _Config:
    """``generationConfig`` in neutral terms."""

    sampling: dict[str, float | int]
    max_tokens: int | None
    candidates: int
    log_probs: bool
    stop: tuple[str, ...]
    output_format: OutputFormat | None
    options: TemplateOptions
    display: ThoughtDisplay
    unused: list[str]


def _read_config(config: ProtoFields) -> _Config:
    """Raises: BadRequest."""
    refuse_knobs(config, {name: known for name, known in FOREIGN_KNOBS.items() if name not in CONFIG_HONOURED})
    for name in config.values:
        if name not in CONFIG_HONOURED | _CONFIG_UNUSED | FOREIGN_KNOBS.keys() and config.has(name):
            raise config.wrong(name, "is not supported by this server; leave it out")
    _check_output(config)
    unused = config.unused(CONFIG_HONOURED | FOREIGN_KNOBS.keys(), "generationConfig.")
    sampling = read_sampling(config)
    max_tokens = config.integer_or_none("max_output_tokens", 1)
    check_token_limits(config, sampling, max_tokens)
    options, display = _read_thinking(config, unused)
    return _Config(
        sampling=sampling,
        max_tokens=max_tokens,
        candidates=config.integer_or_none("candidate_count", 1, MAX_CHOICES) or 1,
        log_probs=config.flag("response_logprobs"),
        stop=read_stop(config, "stop_sequences"),
        output_format=_read_output_format(config),
        options=options,
        display=display,
        unused=unused,
    )


def _check_output(config: ProtoFields) -> None:
    """Raises: BadRequest, for another output than text, or for log probs of tokens that were not sampled."""
    if any(kind != "TEXT" for kind in config.texts("response_modalities")):
        raise config.wrong("response_modalities", "must be TEXT: this server writes nothing else")
    if config.integer_or_none("logprobs", 0):
        raise config.wrong("logprobs", "the engine tells the log probs of sampled tokens alone: use responseLogprobs")


def _read_output_format(config: ProtoFields) -> OutputFormat | None:
    mime_type = config.text_or_none("response_mime_type") or "text/plain"
    schema = config.object_or_none("response_schema")
    as_json = config.json_object_or_none("response_json_schema")
    field = "response_schema" if schema is not None else "response_json_schema"
    if mime_type == "text/plain":
        if schema is not None or as_json is not None:
            raise config.wrong(field, f"needs responseMimeType {_JSON}")
        return None
    if mime_type != _JSON:
        raise config.wrong("response_mime_type", f"must be text/plain or {_JSON}")
    if schema is not None and as_json is not None:
        raise config.wrong(field, "cannot stand beside responseJsonSchema")
    if schema is None and as_json is None:
        return OutputFormat(None, config.at("response_mime_type"))
    return OutputFormat(as_json if schema is None else read_schema(schema), config.at(field))


def _read_thinking(config: ProtoFields, unused: list[str]) -> tuple[TemplateOptions, ThoughtDisplay]:
    """What ``thinkingConfig`` is for the template, and whether the reply shows thoughts."""
    options = TemplateOptions()
    thinking = config.object_or_none("thinking_config")
    if thinking is None:
        return options, ThoughtDisplay.OMITTED
    shown = thinking.flag("include_thoughts")
    budget = thinking.integer_or_none("thinking_budget", -1)
    level = thinking.word("thinking_level", ("MINIMAL", "LOW", "MEDIUM", "HIGH"))
    if budget is not None or level is not None or shown:
        options.set_thinking(budget != 0, _THINKING)
    if level is not None:
        options.set_effort(thinking, "thinking_level", f"{_THINKING}.thinkingLevel")
    honoured = {"include_thoughts", "thinking_level"} | ({"thinking_budget"} if budget == 0 else set())
    unused.extend(thinking.unused(honoured, f"{_THINKING}."))
    return options, ThoughtDisplay.SHOWN if shown else ThoughtDisplay.OMITTED
