"""Which sampling is in force for a turn: pinned session values over the request, over session defaults, over the server's defaults.

Trainers set what a session pins; agent CLIs send whatever they like. What was in force is kept in the turn's record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapter.config import Config
from adapter.errors import BadRequest
from adapter.types import ChatRequest
from engine.types import SamplingParams

FLOAT_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "repetition_penalty": (1e-3, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}
INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "top_k": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
    "min_tokens": (0, 2**31 - 1),
    "max_tokens": (1, 2**31 - 1),
}
"""``max_tokens`` is set beside the sampling parameters, though it is none of the sampler's."""


@dataclass(frozen=True, slots=True)
class SessionSampling:
    """What a session was opened with: ``default`` gives way to the request, ``pinned`` overrides it."""

    default: Mapping[str, float | int] = field(default_factory=dict)
    pinned: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EffectiveSampling:
    """``params.seed`` is the turn's own; ``max_tokens`` is what was asked for, before the context cuts it."""

    params: SamplingParams
    max_tokens: int
    overridden: tuple[str, ...]
    """Values of the request that a pinned one replaced."""


def read_settings(document: Any, field_name: str) -> dict[str, float | int]:
    """Check a JSON object of sampling values. Raises: BadRequest, naming the field below ``field_name``."""
    if not isinstance(document, dict):
        raise BadRequest(f"{field_name} must be an object", field=field_name)
    return {name: _read_value(name, value, f"{field_name}.{name}") for name, value in document.items()}


def _read_value(name: str, value: Any, field_name: str) -> float | int:
    if name in INTEGER_RANGES:
        low, high = INTEGER_RANGES[name]
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise BadRequest(f"{field_name} must be an integer in [{low}, {high}]", field=field_name)
    if name in FLOAT_RANGES:
        low_f, high_f = FLOAT_RANGES[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and math.isfinite(value) and low_f <= value <= high_f:
            return float(value)
        raise BadRequest(f"{field_name} must be a number in [{low_f:g}, {high_f:g}]", field=field_name)
    raise BadRequest(
        f"{field_name} is not a sampling value; known are {', '.join([*FLOAT_RANGES, *INTEGER_RANGES])}",
        field=field_name,
    )


def effective_sampling(
    config: Config, session: SessionSampling, request: ChatRequest, fresh_seed: int, choice: int = 0
) -> EffectiveSampling:
    """Lay the four layers over one another. ``fresh_seed`` is used where nobody chose a seed.

    ``choice`` is added to the seed, whoever chose it: several replies to one request must not be the same.
    """
    asked = dict(request.sampling)
    if request.max_tokens is not None:
        asked["max_tokens"] = request.max_tokens
    values: dict[str, Any] = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "max_tokens": config.max_tokens,
        "seed": fresh_seed,
    }
    values.update(session.default)
    values.update(asked)
    values.update(session.pinned)
    overridden = tuple(name for name, value in session.pinned.items() if asked.get(name, value) != value)
    max_tokens = int(values.pop("max_tokens"))
    values["seed"] = (values["seed"] + choice) % 2**64
    return EffectiveSampling(SamplingParams(**values), max_tokens, overridden)
