"""The script: which requests get which reply, how fast, and what goes wrong. A JSON object; unknown keys are errors.

    {"timing": {...}, "tail_tokens": 512, "rules": [RULE, ...], "default": REPLY}

A RULE is a REPLY with conditions. The first rule all of whose conditions hold answers the request; ``default`` answers
where none does, and without it the request fails.

    session        the request's session, exactly
    session_regex  a regular expression that matches the whole session
    turn           the request's turn
    weight_version the version of the weights in force when the request comes
    prompt_regex   a regular expression found in the text of the prompt's last ``tail_tokens`` ids, special tokens included
    times          the rule answers this many requests, then it is as if it were not there

A REPLY:

    ids | text     one of them: the output ids, or a text for the tokenizer, where special tokens may be spelled. Ids need
                   not be in the vocabulary: a client has to notice
    end            true appends the first end id of the request, if it has any
    log_probs      one number for each id (and for the end id); any number, NaN and Infinity included. Left out: made up,
                   see ``noise``
    finish_reason  what is reported when the reply runs out; "stop" if left out
    time_per_output_token_ms
                   between two tokens of this reply, in place of the timing's
    fault          {"kind": ..., "after": n, ...}: what goes wrong once n tokens (0 if left out) have come

A request that goes on with a reply (parameter ``continued``) gets the rest of it: its rule is found by the prompt before that
reply, and it is no second use of the rule.

A reply is cut where a model would end it: at an end id, a stop word or the token limit. A reply that runs out before
the request's ``min_tokens`` begins again from its first id.

Kinds of faults:

    error_before_first_token   the request ends with an error ("message"); no ``after``
    cut                        the same after n tokens
    stall                      no further token for "seconds", or until it is cancelled; the slot stays taken
    crash                      the model's process ends at once

With "lasting": true, who goes on with such a reply meets the fault at once, so that nobody can have the rest of it.

Timing; each can also be given as the model's parameter of that name, which then counts. By default everything is
instant.

    prefill_tokens_per_s       speed of the prompt's part that is not cached; 0 takes no time
    time_per_output_token_ms   between two tokens
    jitter                     0 to 1: each such time is scaled by a factor in [1 - jitter, 1 + jitter], given by seed and
                               position
    slots                      requests at once, others wait in order; 0 is no limit
    block_size                 cached tokens are counted in whole blocks of so many
    kv_cache_tokens            tokens kept for reuse over all sessions, the least recently used session dropped first
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from common.replies import FinishReason

from .fields import Fields, ScriptError

MAX_TAIL_TOKENS = 8192
"""What one request's match may decode."""

Encode = Callable[[str], list[int]]


class FaultKind(StrEnum):
    """What goes wrong; see the module."""

    ERROR_BEFORE_FIRST_TOKEN = "error_before_first_token"
    CUT = "cut"
    STALL = "stall"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Fault:
    """``seconds`` is of a stall; None is for ever."""

    kind: FaultKind
    after: int
    seconds: float | None
    message: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """``log_probs``, if given, has one number for each of ``ids`` and one more if ``end``."""

    ids: tuple[int, ...]
    end: bool
    log_probs: tuple[float, ...] | None
    finish_reason: FinishReason
    time_per_output_token_ms: float | None
    """None: as the script's timing says."""
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that is None always holds; ``times`` None is without end."""

    reply: Reply
    session: str | None
    session_regex: re.Pattern[str] | None
    turn: int | None
    weight_version: int | None
    prompt_regex: re.Pattern[str] | None
    times: int | None


@dataclass(frozen=True, slots=True)
class Timing:
    """See the module. 0 in the first two means no time, in ``slots`` no limit."""

    prefill_tokens_per_s: float
    time_per_output_token_ms: float
    jitter: float
    slots: int
    block_size: int
    kv_cache_tokens: int


@dataclass(frozen=True, slots=True)
class Script:
    """A whole script. ``default`` None: requests that no rule answers fail."""

    rules: tuple[Rule, ...]
    default: Reply | None
    timing: Timing
    tail_tokens: int

    @property
    def reads_prompts(self) -> bool:
        """Whether a tokenizer is needed to match rules."""
        return any(rule.prompt_regex for rule in self.rules)


def parse_script(document: Any, encode: Encode, timing: Mapping[str, float]) -> Script:
    """``encode`` makes ids of a text; ``timing`` are values that count instead of the script's.

    Raises: ScriptError, naming rule and field; whatever ``encode`` raises.
    """
    fields = Fields(document, "script")
    script = Script(
        rules=tuple(_rule(item, encode) for item in fields.objects("rules")),
        default=_reply(default, encode) if (default := fields.object("default")) is not None else None,
        timing=_timing(fields.object("timing"), timing),
        tail_tokens=fields.integer("tail_tokens", 512, minimum=1, maximum=MAX_TAIL_TOKENS),
    )
    fields.finish()
    return script


def _rule(fields: Fields, encode: Encode) -> Rule:
    return Rule(
        session=fields.text("session"),
        session_regex=fields.regex("session_regex"),
        turn=fields.integer("turn", None, minimum=0),
        weight_version=fields.integer("weight_version", None, minimum=0),
        prompt_regex=fields.regex("prompt_regex"),
        times=fields.integer("times", None, minimum=1),
        reply=_reply(fields, encode),
    )


def _reply(fields: Fields, encode: Encode) -> Reply:
    ids, text = fields.ids("ids"), fields.text("text")
    if (ids is None) == (text is None):
        raise fields.error("text", "give either ids or text")
    reply_ids = tuple(encode(text)) if ids is None and text is not None else ids or ()
    end = fields.flag("end")
    count = len(reply_ids) + end
    log_probs = fields.numbers("log_probs")
    if log_probs is not None and len(log_probs) != count:
        raise fields.error("log_probs", f"{len(log_probs)} numbers for {count} ids")
    reply = Reply(
        ids=reply_ids,
        end=end,
        log_probs=log_probs,
        finish_reason=FinishReason(fields.choice("finish_reason", FinishReason, FinishReason.STOP)),
        time_per_output_token_ms=fields.number("time_per_output_token_ms", None, minimum=0),
        fault=_fault(fault, count) if (fault := fields.object("fault")) is not None else None,
    )
    fields.finish()
    return reply


def _fault(fields: Fields, count: int) -> Fault:
    kind = FaultKind(fields.choice("kind", FaultKind, None))
    early = kind is FaultKind.ERROR_BEFORE_FIRST_TOKEN
    fault = Fault(
        kind=kind,
        after=fields.integer("after", 0, minimum=0, maximum=0 if early else count),
        seconds=fields.number("seconds", None, minimum=0) if kind is FaultKind.STALL else None,
        message=fields.text("message") or f"scripted fault: {kind}",
        lasting=fields.flag("lasting"),
    )
    fields.finish()
    return fault


def _timing(fields: Fields | None, given: Mapping[str, float]) -> Timing:
    fields = Fields((fields.document if fields else {}) | dict(given), "script.timing")
    timing = Timing(
        prefill_tokens_per_s=fields.number("prefill_tokens_per_s", 0.0, minimum=0),
        time_per_output_token_ms=fields.number("time_per_output_token_ms", 0.0, minimum=0),
        jitter=fields.number("jitter", 0.0, minimum=0, maximum=1),
        slots=fields.integer("slots", 0, minimum=0),
        block_size=fields.integer("block_size", 16, minimum=1),
        kv_cache_tokens=fields.integer("kv_cache_tokens", 32_000_000, minimum=0),
    )
    fields.finish()
    return timing


__all__ = ["Encode", "Fault", "FaultKind", "Reply", "Rule", "Script", "ScriptError", "Timing", "parse_script"]
