"""Whether a replayed message is the one that a node holds, given what clients do to messages on the way.

Clients drop or trim thinking, trim texts, leave out blocks of white space, split and join blocks, and write arguments of
calls anew as their own JSON library does. None of that is an edit. Compared pair by pair: equal texts cost a memory
comparison, and JSON is only walked where ``==`` fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from adapter.trajectory.reasons import Difference
from adapter.types import Message

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""What half a character of JavaScript becomes when it is written as UTF-8: U+FFFD."""

_COMPARED = frozenset({"role", "content", "reasoning_content", "tool_calls"})


LARGEST_GROUP = 64
"""Parallel tool results. Larger groups are only compared in their order."""


def equal(left: Any, right: Any) -> bool:
    """``==`` of JSON-like data. Data that is nested too deeply to be compared is not equal."""
    try:
        return bool(left == right)
    except RecursionError:
        return False


def differences(known: Message, replay: Message, *, repaired: bool = False) -> tuple[Difference, ...] | None:
    """How ``replay`` differs from ``known``; None if they are different messages.

    ``repaired`` admits calls whose arguments came back empty, as clients do with calls that they could not read.
    """
    if known.get("role") != replay.get("role") or not _same_rest(known, replay):
        return None
    calls = _call_differences(_calls(known), _calls(replay), repaired)
    if calls is None:
        return None
    found = set(calls)
    before, after = text_of(known), text_of(replay)
    if before != after:
        if not _same_text(before, after, in_blocks=known.get("role") != "assistant" or bool(_calls(known))):
            return None
        found.add(Difference.WHITESPACE)
    if _reasoning(known) != _reasoning(replay):
        found.add(Difference.THINKING)
    if not found and known.get("content") != replay.get("content"):
        found.add(Difference.WHITESPACE)  # a string here, blocks there
    return tuple(sorted(found))


def likeness_hash(message: Message) -> int:
    """The same for messages between which ``differences`` finds no edit."""
    names = tuple(str(_call(call)[0]) for call in _calls(message))
    return hash((message.get("role"), names, "".join(text_of(message).split())))


def is_part(parsed: Message, replay: Message) -> bool:
    """Whether ``replay`` can be a beginning of the reply ``parsed``: of its text, or its text and some of its calls.

    The last of these calls may have been cut off: clients hand it back with empty arguments.
    """
    if replay.get("role") != "assistant":
        return False
    known, replayed = _calls(parsed), _calls(replay)
    if len(replayed) > len(known):
        return False
    if _call_differences(known[: len(replayed)], replayed, repaired=len(replayed) == len(known)) is None:
        return False
    before, after = "".join(text_of(parsed).split()), "".join(text_of(replay).split())
    if not before.startswith(after):
        return False
    return bool(replayed or after) or _reasoning(parsed).startswith(_reasoning(replay))


def unit_end(messages: Sequence[Message], start: int) -> int:
    """The end of what belongs together from ``start`` on: a run of tool results, or one message."""
    end = start + 1
    if messages[start].get("role") == "tool":
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
    return end


def same_history(known: Sequence[Message], replay: Sequence[Message]) -> bool:
    """Whether ``replay`` begins with ``known``; results of parallel calls may stand in any order."""
    start = 0
    while start < len(known):
        end = unit_end(known, start)
        if not _same_unit(known[start:end], replay[start:end]):
            return False
        start = end
    return True


def _same_unit(known: Sequence[Message], replay: Sequence[Message]) -> bool:
    if len(known) != len(replay):
        return False
    if all(map(_is_like, known, replay)):
        return True
    left = list(known)
    return 1 < len(left) <= LARGEST_GROUP and all(_take(left, message) for message in replay)


def _is_like(known: Message, replay: Message) -> bool:
    return equal(known, replay) or differences(known, replay) is not None


def _take(left: list[Message], message: Message) -> bool:
    """Take a message like this one out of ``left``."""
    place = next((place for place, known in enumerate(left) if _is_like(known, message)), None)
    if place is None:
        return False
    del left[place]
    return True


def is_empty(message: Message) -> bool:
    """Whether a client sees nothing in it."""
    return not _calls(message) and not text_of(message).strip()


def text_of(message: Message) -> str:
    """``content`` as one text, whether it is a string, blocks or missing."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = [block.get("text") for block in content if isinstance(block, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str) and text)
    return ""


def same_json(left: Any, right: Any) -> bool:
    """Whether both are the same data to a client that writes JSON as JavaScript does. Not recursive."""
    pending = [(left, right)]
    while pending:
        one, other = pending.pop()
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if one.keys() != other.keys():
                return False
            pending += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pending += zip(one, other, strict=True)
        elif _as_javascript(one) != _as_javascript(other):
            return False
    return True


def _as_javascript(value: Any) -> tuple[str, Any]:
    """A scalar after a round through JavaScript: numbers are doubles, what is no finite number is null."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int | float):
        number = _as_double(value)
        return ("number", number) if math.isfinite(number) else ("null", None)
    if isinstance(value, str):
        return "text", _LONE_SURROGATE.sub("\ufffd", value)
    return ("null", None) if value is None else (type(value).__name__, value)


def _as_double(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _same_text(before: str, after: str, *, in_blocks: bool) -> bool:
    """Equal but for white space around a text; where the text may have stood in several blocks, around each of them."""
    before, after = before.strip(), after.strip()
    if before == after:
        return True
    if not in_blocks or not _begin_alike("".join(before[:256].split()), "".join(after[:256].split())):
        return False
    return "".join(before.split()) == "".join(after.split())


def _begin_alike(left: str, right: str) -> bool:
    """Most texts differ soon, and need not be looked at as a whole."""
    return left.startswith(right) or right.startswith(left)


def _same_rest(known: Message, replay: Message) -> bool:
    if known.keys() <= _COMPARED and replay.keys() <= _COMPARED:
        return True
    return all(equal(known.get(key), replay.get(key)) for key in (known.keys() | replay.keys()) - _COMPARED)


def _call_differences(known: Sequence[Any], replay: Sequence[Any], repaired: bool) -> set[Difference] | None:
    if equal(known, replay):
        return set()
    if len(known) != len(replay):
        return None
    found: set[Difference] = set()
    for before, after in zip(known, replay, strict=True):
        name, arguments = _call(before)
        replayed_name, replayed = _call(after)
        if name != replayed_name:
            return None
        if equal(arguments, replayed):
            continue
        if same_json(arguments, replayed):
            found.add(Difference.JSON)
        elif repaired and replayed == {}:
            found.add(Difference.REPAIRED)
        else:
            return None
    return found


def _calls(message: Message) -> Sequence[Any]:
    return message.get("tool_calls") or ()


def _call(call: Any) -> tuple[Any, Any]:
    """Name and arguments; arguments that are text are read as JSON where they can be."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return None, call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = orjson.loads(arguments)
    return function.get("name"), arguments


def _reasoning(message: Message) -> str:
    return message.get("reasoning_content") or ""
