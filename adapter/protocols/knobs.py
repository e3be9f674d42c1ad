"""The knobs of a request: honoured, refused by name, or listed as of no effect. None that changes the result is ignored.

The sampling knobs are the same for every protocol, also where its official API lacks one (``top_k`` in Chat Completions,
``seed`` in Messages): clients pass them as extra fields. Knobs of other inference servers that this one does not honour
are known by name and refused unless they carry a value that changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from adapter.protocols.reading import INT32_MAX, Fields

MAX_CHOICES = 128
"""Replies to one request: OpenAI's limit for ``n``. Google's own is 8."""

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
"""Every stop string is looked for in every new token's text: both limits keep that cheap."""

NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-3, 100.0),
}
"""Ranges of Anthropic's (temperature: its clients stay below 1) and OpenAI's references; the last is vLLM's ``> 0``."""

INTEGERS: Mapping[str, tuple[int, int]] = {
    "top_k": (-1, INT32_MAX),
    "seed": (-(2**63), 2**64 - 1),
    "min_tokens": (0, INT32_MAX),
}

SAMPLING_KNOBS: frozenset[str] = frozenset((*NUMBERS, *INTEGERS))

_OFF: tuple[Any, ...] = (False, 0, "", [], {})
"""Values that switch a knob off, whatever its type."""

FOREIGN_KNOBS: Mapping[str, Collection[Any]] = {
    **dict.fromkeys(
        (
            "min_p", "top_a", "xtc_probability", "dry_multiplier", "mirostat", "no_repeat_ngram_size", "use_beam_search",
            "min_new_tokens", "max_new_tokens", "ignore_eos", "stop_token_ids", "stop_regex", "no_stop_trim",
            "include_stop_str_in_output", "skip_special_tokens", "bad_words", "allowed_token_ids", "logits_processors",
            "custom_logit_processor", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids",
            "return_tokens_as_token_ids", "return_hidden_states", "truncate_prompt_tokens", "echo", "continue_final_message",
            "add_special_tokens", "documents", "chat_template", "structured_outputs", "guided_json", "guided_regex",
            "guided_choice", "guided_grammar", "structural_tag", "regex", "ebnf", "grammar", "json_schema", "lora_path",
            "thinking_budget", "thinking_token_budget", "functions",
        ),
        _OFF,
    ),
    **dict.fromkeys(("n", "best_of", "num_beams", "length_penalty", "typical_p", "tfs"), (1,)),
    **dict.fromkeys(("do_sample", "add_generation_prompt", "include_reasoning", "separate_reasoning"), (True,)),
}  # fmt: skip
"""Knobs that vLLM, SGLang, TensorRT-LLM and their like read, with the values that change nothing here."""

_RESERVED_OPTIONS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize", "self"}
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_LISTED = 64


def read_sampling(fields: Fields) -> dict[str, float | int]:
    """What the client set of ``engine.types.SamplingParams``, in the engine's terms. Raises: BadRequest."""
    sampling: dict[str, float | int] = {}
    for name, (low, high) in NUMBERS.items():
        number = fields.number_or_none(name, low, high)
        if number is not None:
            sampling[name] = number
    for name, (least, most) in INTEGERS.items():
        integer = fields.integer_or_none(name, least, most)
        if integer is not None:
            sampling[name] = integer
    if sampling.get("top_k") == -1:  # "all of the vocabulary", as vLLM and SGLang write it
        sampling["top_k"] = 0
    if "seed" in sampling:
        sampling["seed"] = int(sampling["seed"]) % 2**64  # a signed 64-bit seed is the unsigned one with the same bits
    return sampling


def check_token_limits(fields: Fields, sampling: Mapping[str, float | int], max_tokens: int | None) -> None:
    if max_tokens is not None and sampling.get("min_tokens", 0) > max_tokens:
        raise fields.wrong("min_tokens", f"must not be above the limit of {max_tokens} tokens")


def read_stop(fields: Fields, name: str) -> tuple[str, ...]:
    """Stop strings: an array of strings, or one string. Raises: BadRequest."""
    stops = [fields.text(name)] if isinstance(fields.get(name), str) else fields.texts(name)
    if len(stops) > MAX_STOPS:
        raise fields.wrong(name, f"must hold at most {MAX_STOPS} strings")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise fields.wrong(name, f"each stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def read_template_options(fields: Fields) -> dict[str, Any]:
    """``chat_template_kwargs``: variables for the chat template, except what the server itself gives it. Raises: BadRequest."""
    options = fields.json_object_or_none("chat_template_kwargs") or {}
    for option in options:
        if option in _RESERVED_OPTIONS or option.endswith("_token"):
            raise fields.wrong(f"chat_template_kwargs.{option}", "is given by the server and cannot be set")
        if not option.isidentifier():
            raise fields.wrong("chat_template_kwargs", "names must be identifiers")
    return dict(options)


def read_json_schema(fields: Fields, name: str) -> dict[str, Any]:
    """A JSON schema that the reply's text has to follow; required. Raises: BadRequest."""
    schema = fields.json_object_or_none(name)
    if schema is None:
        raise fields.wrong(name, "is required: a JSON schema")
    return schema


def refuse_knobs(fields: Fields, knobs: Mapping[str, Collection[Any]]) -> None:
    """Raises: BadRequest for the first member that ``knobs`` names with another value than those that change nothing."""
    for name, value in fields.values.items():
        if value is not None and name in knobs and not any(_same(value, idle) for idle in knobs[name]):
            raise fields.wrong(name, "is not supported by this server; leave it out")


def _same(value: Any, idle: Any) -> bool:
    """Equal and of one type: in Python True is 1, in JSON it is not."""
    return value == idle and isinstance(value, bool) == isinstance(idle, bool)


def unused_names(fields: Fields, known: Collection[str]) -> list[str]:
    """Members that are neither honoured nor refused, in the order of the body. The list is bounded and safe to put in a header.

    One that is null counts as absent."""
    names = [name for name in fields.values if name not in known and fields.has(name) and _PLAIN_NAME.fullmatch(name)]
    return names[:_MAX_LISTED]
