"""What an export leaves out on purpose: auxiliary calls, tokens of old weights, samples that broke off.

What a filter leaves out stays in samples as context wherever later turns build on it; only its training stops, and the
ledger says so. A turn that is left out together with one leaf's sample trains in the next leaf that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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


FIELDS = ("drop_labels", "max_staleness", "current_version", "stale", "drop_truncated")
"""Of a request's object."""
VersionOf = Callable[[str], int | None]
"""The weight version in force of a served model, by its name; None if it is not known."""


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
    """A token is stale if its weight version is older than the current one by more than this; None is no limit.
    A token whose version was not recorded is stale under any limit."""
    current_version: int | None = None
    """The weight version that the trainer holds, whichever model sampled; None: the one in force, by ``version_of``."""
    stale: StaleScope = StaleScope.TOKENS
    drop_truncated: bool = False
    """Leave out samples with the flag ``truncated``: the last turn of their leaf ended at the token limit."""
    version_of: VersionOf | None = None
    """No field of a request: ``at`` fills it in."""

    @classmethod
    def parse(cls, document: Any) -> ExportFilters:
        """Read the JSON object of a request. Raises: BadRequest, naming the field."""
        if document is None:
            return cls()
        if not isinstance(document, Mapping):
            raise BadRequest("filters must be an object", field="filters")
        for name in document:
            if name not in FIELDS:
                known = ", ".join(FIELDS)
                raise BadRequest(f"unknown field filters.{name}; known are {known}", field=f"filters.{name}")
        return cls(
            drop_labels=_labels(document.get("drop_labels", ())),
            max_staleness=_count(document, "max_staleness"),
            current_version=_count(document, "current_version"),
            stale=_scope(document.get("stale", StaleScope.TOKENS)),
            drop_truncated=_flag(document, "drop_truncated"),
        )

    def at(self, version_of: VersionOf) -> ExportFilters:
        """The same filters, which count from what each model has in force where they name no version."""
        return replace(self, version_of=version_of)

    def check(self) -> None:
        """Raises: BadRequest, if the filters cannot be applied, whatever was sampled."""
        if self.max_staleness is not None and self.current_version is None and self.version_of is None:
            raise _nothing_to_count_from("")

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
        """Which output tokens are stale: bool [N]. Raises: BadRequest, if nobody knows the version to count from."""
        if self.max_staleness is None:
            return np.zeros(turn.output.size, np.bool_)
        oldest = self._current(turn) - self.max_staleness
        stale = np.ones(turn.output.size, np.bool_)
        for span in turn.versions:
            stale[span.start : span.end] = span.version < oldest
        return stale

    def _current(self, turn: Generation) -> int:
        if self.current_version is not None:
            return self.current_version
        version = None if self.version_of is None else self.version_of(turn.model)
        if version is None:
            raise _nothing_to_count_from(turn.model)
        return version


def _nothing_to_count_from(model: str) -> BadRequest:
    unknown = f"; the weight version of {model!r} is not known" if model else ""
    message = f"filters.max_staleness needs filters.current_version to count from{unknown}"
    return BadRequest(message, field="filters.current_version")


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
