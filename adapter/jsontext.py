"""JSON as models and clients write it, read without loss."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_LONG_INTEGER = re.compile(r"\d{19}")
_LONG_INTEGER_BYTES = re.compile(rb"\d{19}")


def read_json(text: str) -> Any:
    """The value of a JSON text. Integers keep all their digits: orjson makes those beyond 64 bits floats.

    Raises: ValueError.
    """
    value = orjson.loads(text)
    return json.loads(text) if _LONG_INTEGER.search(text) else value


def json_text(value: Any) -> str:
    """``value`` as JSON. Integers keep all their digits: orjson refuses those beyond 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def dump_json(value: Any) -> bytes:
    """Compact JSON that ``load_exact`` reads as the same value, also where orjson gives up: huge integers, lone surrogates."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def load_exact(data: bytes) -> Any:
    """What ``dump_json`` wrote. Raises: ValueError."""
    if _LONG_INTEGER_BYTES.search(data):
        return json.loads(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # a lone surrogate, which orjson refuses
        return json.loads(data)
