"""What several endpoints have in common, and why one of them may not be used beside the others. Pure.

A session's turns may be served by any of them, and are recorded as those of one engine: so vocabulary and the meaning of log probs
have to be the same. What is only a limit is the smallest, and what is only on offer is what all offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from engine.types import EngineInfo

MUST_EQUAL = {"model": "model", "dialect": "dialect", "vocab_size": "vocabulary", "log_prob_mode": "log-prob mode"}
"""Fields of EngineInfo, and their names for people."""


def disagreement(agreed: EngineInfo, found: EngineInfo) -> str | None:
    """Why an endpoint that was ``found`` to be so cannot serve; ``agreed`` is what the first one was. None if it can."""
    for field, name in MUST_EQUAL.items():
        ours, theirs = getattr(agreed, field), getattr(found, field)
        if ours != theirs:
            return f"its {name} is {theirs}, not {ours} as that of the first endpoint; restart rollserve to change it for all"
    return None


def in_common(infos: Sequence[EngineInfo]) -> EngineInfo:
    """What can be relied on, whichever endpoint it is. ``infos`` agree and are at least one."""
    return reduce(
        lambda one, other: replace(
            one,
            max_seq_len=min(one.max_seq_len, other.max_seq_len),
            guides=one.guides & other.guides,
            loras=one.loras & other.loras,
            weight_version=min(one.weight_version, other.weight_version),
        ),
        infos,
    )
