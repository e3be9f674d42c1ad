"""Which weights are in force; an endpoint that comes back without them gets them before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError, EngineUnavailable
from engine.types import EngineInfo


@dataclass(frozen=True, slots=True)
class Weights:
    """``version`` 0 to 2**31 - 1; versions only rise, and each names one set of weights. ``path``: the checkpoint, as the engine's
    host sees it; None where the engine has its own way to them."""

    version: int
    path: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the control operation ``update_weights``."""
        return {"version": self.version} if self.path is None else {"version": self.version, "path": self.path}


def outdated(required: Weights | None, info: EngineInfo) -> str | None:
    """Why an endpoint that is as ``info`` says cannot be used beside those that have the required weights; None if it can.

    Newer ones are nothing to object to: somebody else has updated the engine, and its tokens say so.
    """
    if required is None or info.weight_version >= required.version:
        return None
    return f"its weights are version {info.weight_version}, and version {required.version} is in force"


def update_failed(weights: Weights, answer: dict[str, Any]) -> str | None:
    """What is wrong with the answer to an update; None if nothing is."""
    version = answer.get("weight_version")
    return None if version == weights.version else f"after the update it says that its weights are version {version}"


def not_brought_up(address: str, why: str, error: EngineError | str) -> EngineUnavailable:
    """The failure of a trial that found old weights."""
    return EngineUnavailable(f"the endpoint {address} is not used: {why}, and it did not take them: {error}")
