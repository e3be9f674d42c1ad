"""The schema of a protocol's error bodies, inferred from the bodies that the protocol renders for every kind of error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapter import errors
from adapter.http.failures import MethodNotAllowed, ServerFault, control_error
from adapter.protocols.base import WireProtocol

KINDS: tuple[type[errors.AdapterError], ...] = (
    errors.BadRequest, errors.Unauthorized, errors.Forbidden, errors.NotFound, errors.Conflict, errors.Gone,
    errors.BodyTooLarge, errors.UnsupportedEncoding, errors.KeyReused, errors.TooManyRequests, errors.UpstreamFailed,
    errors.Unavailable, errors.UpstreamTimeout, MethodNotAllowed, ServerFault,
)  # fmt: skip
"""What a request can end with, whatever the protocol."""


def error_schema(protocol: WireProtocol | None) -> dict[str, Any]:
    """``protocol`` is None for the server's own routes."""
    render = control_error if protocol is None else protocol.render_error
    return _covering([render(kind("message", field=field)) for kind in KINDS for field in ("field", None)])


def _covering(values: Sequence[Any]) -> dict[str, Any]:
    """The schema that all of ``values`` follow: their types, and of objects the members that all have."""
    types = sorted({_type_of(value) for value in values})
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        names = sorted({name for value in objects for name in value})
        schema["properties"] = {name: _covering([value[name] for value in objects if name in value]) for name in names}
        schema["required"] = [name for name in names if all(name in value for value in objects)]
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        schema["items"] = _covering(items)
    return schema


def _type_of(value: Any) -> str:
    """The name that JSON Schema has for the type."""
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
