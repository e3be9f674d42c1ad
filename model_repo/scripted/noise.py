"""Numbers that look drawn and are not: functions of seed and position, for made-up log probs and for jitter.

The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), chained over the keys.
"""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1
_LOG_PROB_STREAM, _JITTER_STREAM = 1, 2
"""Keep the two uses apart."""

_SMALLEST = 1e-4
"""A made-up log prob is never 0: that would look like greedy decoding."""


def log_prob(seed: int, position: int, token: int) -> float:
    """A log prob of a plausible size: negative, exponentially distributed, 0.7 nats on average."""
    return 0.7 * math.log(1.0 - unit(_LOG_PROB_STREAM, seed, position, token)) - _SMALLEST


def jitter_factor(jitter: float, seed: int, position: int) -> float:
    """In [1 - jitter, 1 + jitter)."""
    return 1.0 + jitter * (2.0 * unit(_JITTER_STREAM, seed, position) - 1.0)


def unit(*keys: int) -> float:
    """In [0, 1), from the keys alone."""
    state = 0
    for key in keys:
        state = _mix((state ^ (key & _MASK)) + 0x9E3779B97F4A7C15 & _MASK)
    return (state >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
