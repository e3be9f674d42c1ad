"""Is the model that answers now the one that was probed? Told by its ``stats``. Pure.

A server can be killed and be back between two health checks, and a model can be loaded again beside a connection that stands. What
is known of it, its vocabulary and its context for two, is then knowledge of another. So every answer to ``stats`` is compared with
the one that was given when it was probed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.types import EngineInfo

INSTANCE = "instance"
"""Another text after each start of the model. One that does not say it may have been started anew behind every new connection."""

COMPARED = {
    INSTANCE: "start of the model",
    "vocab_size": "vocabulary",
    "max_seq_len": "longest sequence",
    "log_prob_mode": "log-prob mode",
    "guided_decoding": "guided decoding",
    "loras": "LoRA adapters",
    "configuration": "configuration",
}
"""Keys of an answer to ``stats``, and their names for people. What is not among them changes while a model serves."""

Identity = Mapping[str, Any]
"""The values of ``COMPARED`` that a model gives."""


@dataclass(frozen=True, slots=True)
class Known:
    """Who was found at an endpoint, and over which connection: ``losses`` is the number of those before."""

    identity: Identity
    losses: int


def identity_of(stats: Mapping[str, Any]) -> Identity:
    """``stats``: the answer to the control request."""
    return {key: stats[key] for key in COMPARED if key in stats}


def difference(known: Identity, now: Identity) -> str | None:
    """What tells the model from the known one, for people; None if nothing does."""
    for key, name in COMPARED.items():
        before, after = known.get(key), now.get(key)
        if before != after:
            return _told(name, before, after)
    return None


def contradiction(info: EngineInfo, identity: Identity) -> str | None:
    """What the model says otherwise than its configuration, which ``info`` comes from; None if nothing."""
    configured = {
        "vocab_size": info.vocab_size,
        "max_seq_len": info.max_seq_len,
        "log_prob_mode": str(info.log_prob_mode),
        "guided_decoding": sorted(map(str, info.guides)),
        "loras": sorted(info.loras),
    }
    for key, value in configured.items():
        if identity.get(key, value) != value:
            return f"its {COMPARED[key]} is {identity[key]} by its stats and {value} by its configuration"
    return None


def _told(name: str, before: Any, after: Any) -> str:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        return f"its {name} has another {', '.join(names)}"
    return f"its {name} was {before} and is {after}"
