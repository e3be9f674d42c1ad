"""What an export leaves out on purpose: auxiliary calls, tokens of old weights, samples that broke off.

What a filter leaves out stays in samples as context wherever later turns build on it; only its training stops, and the
ledger says so. A turn that is left out together with one leaf's sample trains in the next leaf that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.errors import BadRequest
from adapter.trajectory.generation import Generation
from adapter.trajectory.ledger import DropReason
from adapter.types import LabelKind

AUXILIARY_LABELS = (
    LabelKind.TITLE,
    LabelKind.COMPACTION,
    LabelKind.MEMORY,
    LabelKind.COUNT,
    LabelKind.OTHER,
)
"""Labels of the calls that agent CLIs make beside their work."""


class StaleScope(StrEnum):
    """What is left out where tokens are stale."""

    TOKENS = "tokens"
    """These tokens."""
    SAMPLES = "samples"
    """Every sample in which one of them would train."""


@dataclass(frozen=True, slots=True)
class ExportFilters:
    """Which sampled tokens must not train. The defaults leave nothing out."""

    drop_labels: frozenset[LabelKind] = frozenset()
    """Turns with one of these labels do not train; branches that end in them are not exported for their sake."""
    max_staleness: int | None = None
    """A token is stale if its weight version is older than ``current_version`` by more than this; None is no limit.
    A token whose version was not recorded is stale under any limit."""
    current_version: int | None = None
    """The weight version that the trainer holds. A limit needs it; ``at`` fills it in."""
    stale: StaleScope = StaleScope.TOKENS
    drop_truncated: bool = False
    """Leave out samples with the flag ``truncated``: the last turn of their leaf ended at the token limit."""

    @classmethod
    def parse(cls, document: Any) -> ExportFilters:
        """Read the JSON object of a request. Raises: BadRequest, naming the field."""
        if document is None:
            return cls()
        if not isinstance(document, Mapping):
            raise BadRequest("filters must be an object", field="filters")
        for name in document:
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise BadRequest(f"unknown field filters.{name}; known are {known}", field=f"filters.{name}")
        return cls(
            drop_labels=_labels(document.get("drop_labels", ())),
            max_staleness=_count(document, "max_staleness"),
            current_version=_count(document, "current_version"),
            stale=_scope(document.get("stale", StaleScope.TOKENS)),
            drop_truncated=_flag(document, "drop_truncated"),
        )

    def at(self, version: int | None) -> ExportFilters:
        """The same filters, ``version`` being the current one if they name none; None if that is not known."""
        return self if self.current_version is not None else replace(self, current_version=version)

    def check(self) -> None:
        """Raises: BadRequest, if the filters cannot be applied."""
        if self.max_staleness is not None and self.current_version is None:
            raise BadRequest(
                "filters.max_staleness needs filters.current_version to count from", field="filters.current_version"
            )

    def drops_label_of(self, turn: Generation) -> bool:
        """Whether the turn's label keeps it from training."""
        return label_of(turn) in self.drop_labels

    def refusals(self, turn: Generation) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Reasons why output tokens of a turn do not train, each with where: bool [N]. The first reason counts."""
        everywhere = np.ones(turn.output.size, np.bool_)
        if turn.untrainable is not None:
            yield turn.untrainable, everywhere
        if self.drops_label_of(turn):
            yield f"{DropReason.LABEL}:{label_of(turn)}", everywhere
        if turn.log_probs is not None:
            yield DropReason.NON_FINITE, ~np.isfinite(turn.log_probs)
        yield DropReason.STALE, self.stale_tokens(turn)

    def refuses_stale(self, turns: Iterable[Generation]) -> bool:
        """Whether a sample in which ``turns`` would train is left out as a whole."""
        return self.stale is StaleScope.SAMPLES and any(self.stale_tokens(turn).any() for turn in turns)

    def stale_tokens(self, turn: Generation) -> NDArray[np.bool_]:
        """Which output tokens are stale: bool [N]."""
        if self.max_staleness is None:
            return np.zeros(turn.output.size, np.bool_)
        assert self.current_version is not None
        stale = np.ones(turn.output.size, np.bool_)
        for span in turn.versions:
            stale[span.start : span.end] = span.version < self.current_version - self.max_staleness
        return stale


def label_of(turn: Generation) -> LabelKind | None:
    """What the turn was for, where the record says so."""
    return None if turn.label is None else turn.label.kind


def _labels(value: Any) -> frozenset[LabelKind]:
    if not isinstance(value, list | tuple) or not all(label in list(LabelKind) for label in value):
        raise BadRequest(
            f"filters.drop_labels must be a list of labels; known are {', '.join(LabelKind)}",
            field="filters.drop_labels",
        )
    return frozenset(map(LabelKind, value))


def _count(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise BadRequest(f"filters.{name} must be an integer of at least 0", field=f"filters.{name}")
    return value


def _scope(value: Any) -> StaleScope:
    if value not in list(StaleScope):
        raise BadRequest(f"filters.stale must be one of {', '.join(StaleScope)}", field="filters.stale")
    return StaleScope(value)


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"filters.{name} must be true or false", field=f"filters.{name}")
    return value
