"""The arguments of a call in the history, as OpenAI's protocols write them: a JSON text.

Arguments that are no JSON object are kept as ``{"_raw_arguments": text}``: the model wrote that call, so the conversation must go
on.
"""

from __future__ import annotations

from typing import Any

from adapter.jsontext import read_json
from adapter.protocols.reading import MAX_DEPTH, Fields, deeper_than


def read_arguments(call: Fields) -> dict[str, Any]:
    """The member ``arguments`` of ``call``. Raises: BadRequest."""
    if isinstance(call.get("arguments"), dict):  # some clients replay what they parsed
        return call.json_object_or_none("arguments") or {}
    text = call.text_or_none("arguments") or ""
    if not text.strip():
        return {}
    try:
        arguments = read_json(text)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict) and not deeper_than(MAX_DEPTH, arguments):
        return arguments
    return {"_raw_arguments": text}
