"""The bodies that open and finish a session, read and checked. ``source`` is the body as it came, which a journal keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from adapter.errors import BadRequest
from adapter.sampling import SessionSampling, read_settings
from adapter.trajectory import REWARD_FIELDS, ExportFilters, RewardSpec
from adapter.types import HistoryPolicy

OPEN_FIELDS = frozenset(
    {
        "sid", "sampling", "policy", "max_context_tokens", "max_turns", "max_session_tokens", "metadata",
        "max_weight_lag", "on_weight_lag",
    }
)  # fmt: skip
FINISH_FIELDS = frozenset(
    {*REWARD_FIELDS, "filters", "metadata", "index", "group_index", "prompt", "label", "max_sample_tokens"}
)


class OnWeightLag(StrEnum):
    """What becomes of a session whose oldest tokens are further behind the weights in force than it allows."""

    DROP = "drop"
    """It goes on; such tokens are not trained (reason ``stale``)."""
    END = "end"
    """It gets no further turn either: with what it has to build on, no sample of it would train whole."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What ``POST /v1/sessions`` can set."""

    sampling: SessionSampling = field(default_factory=SessionSampling)
    policy: HistoryPolicy | None = None
    """None takes the server's."""
    max_context_tokens: int | None = None
    max_turns: int | None = None
    max_session_tokens: int | None = None
    max_weight_lag: int | None = None
    """Versions by which the weights that sampled a token may be older than those in force when it is exported; what
    ``filters.max_staleness`` is where a finish does not say. None is no limit."""
    on_weight_lag: OnWeightLag = OnWeightLag.DROP
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> SessionSettings:
        """Raises: BadRequest, naming the field."""
        _only(body, OPEN_FIELDS)
        sampling = body.get("sampling", {})
        if not isinstance(sampling, dict):
            raise BadRequest("sampling must be an object", field="sampling")
        _only(sampling, frozenset({"default", "pinned"}), "sampling.")
        return cls(
            sampling=SessionSampling(
                default=read_settings(sampling.get("default", {}), "sampling.default"),
                pinned=read_settings(sampling.get("pinned", {}), "sampling.pinned"),
            ),
            policy=_policy(body.get("policy")),
            max_context_tokens=_integer(body, "max_context_tokens", low=2),
            max_turns=_integer(body, "max_turns", low=1),
            max_session_tokens=_integer(body, "max_session_tokens", low=1),
            max_weight_lag=_integer(body, "max_weight_lag"),
            on_weight_lag=_on_weight_lag(body),
            metadata=_object(body, "metadata"),
            source=body,
        )


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """What ``finish`` is given; two finishes are the same when these are equal."""

    rewards: RewardSpec = field(default_factory=RewardSpec)
    filters: ExportFilters = field(default_factory=ExportFilters)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    index: int | None = None
    group_index: int | None = None
    prompt: Any = ""
    label: Any = None
    max_sample_tokens: int | None = None
    source: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> FinishRequest:
        """Raises: BadRequest, naming the field."""
        _only(body, FINISH_FIELDS)
        return cls(
            rewards=RewardSpec.parse(body),
            filters=ExportFilters.parse(body.get("filters")),
            metadata=_object(body, "metadata"),
            index=_integer(body, "index"),
            group_index=_integer(body, "group_index"),
            prompt=body.get("prompt", ""),
            label=body.get("label"),
            max_sample_tokens=_integer(body, "max_sample_tokens", low=1),
            source=body,
        )


def _only(body: Mapping[str, Any], known: frozenset[str], prefix: str = "") -> None:
    for name in body:
        if name not in known:
            raise BadRequest(f"unknown field {prefix}{name}; known are {', '.join(sorted(known))}", field=prefix + name)


def _integer(body: Mapping[str, Any], name: str, low: int = 0) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise BadRequest(f"{name} must be an integer of at least {low}", field=name)
    return value


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object", field=name)
    return value


def requested_sid(body: Mapping[str, Any]) -> str | None:
    """The name that a session is to be opened under. Raises: BadRequest."""
    sid = body.get("sid")
    if sid is None:
        return None
    if (
        not isinstance(sid, str)
        or sid in ("", ".", "..")
        or not all(c.isascii() and (c.isalnum() or c in "-_.~") for c in sid)
    ):
        raise BadRequest(
            "sid must be a non-empty string of letters, digits and -_.~, since it stands in URLs", field="sid"
        )
    return sid


def _on_weight_lag(body: Mapping[str, Any]) -> OnWeightLag:
    value = body.get("on_weight_lag")
    if value is None:
        return OnWeightLag.DROP
    if value not in list(OnWeightLag):
        raise BadRequest(f"on_weight_lag must be one of {', '.join(OnWeightLag)}", field="on_weight_lag")
    if body.get("max_weight_lag") is None:
        raise BadRequest("on_weight_lag needs max_weight_lag, which says how much is too much", field="on_weight_lag")
    return OnWeightLag(value)


def _policy(value: Any) -> HistoryPolicy | None:
    if value is None or value in list(HistoryPolicy):
        return None if value is None else HistoryPolicy(value)
    raise BadRequest(f"policy must be one of {', '.join(HistoryPolicy)}", field="policy")
