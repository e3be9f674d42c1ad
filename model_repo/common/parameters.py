"""The model's parameters, as ``config.pbtxt`` gives them: strings by name, read as typed values.

A parameter that is wrong stops the load of the model with a message that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


class ParameterError(ValueError):
    """A parameter of the model is missing, malformed or out of range."""


class Parameters:
    """Typed reads; an absent or empty value is the default, and an error where there is none."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    @classmethod
    def from_model_config(cls, model_config: str) -> Parameters:
        """``model_config`` is the JSON text that Triton passes to ``initialize``."""
        parameters = json.loads(model_config).get("parameters", {})
        return cls({name: entry["string_value"] for name, entry in parameters.items()})

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, "")
        if value:
            return value
        if default is None:
            raise ParameterError(f"parameter {name}: missing")
        return default

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        raw = self.text(name, None if default is None else str(default))
        try:
            value = int(raw)
        except ValueError:
            raise ParameterError(f"parameter {name}: {raw!r} is not an integer") from None
        if value < minimum:
            raise ParameterError(f"parameter {name}: {value} is below {minimum}")
        return value

    def number(self, name: str, default: float | None = None, *, minimum: float = 0.0) -> float:
        raw = self.text(name, None if default is None else str(default))
        try:
            value = float(raw)
        except ValueError:
            raise ParameterError(f"parameter {name}: {raw!r} is not a number") from None
        if not math.isfinite(value) or value < minimum:
            raise ParameterError(f"parameter {name}: {value} is not a finite number of at least {minimum}")
        return value
