"""Whose output each part of a sample's response is, and how it was sampled: ``metadata["turns"]``, checked. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.types import Guide, GuideKind, LogProbMode, SamplingParams


class SampleError(ValueError):
    """The sample contradicts itself; the message says where."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``[start, end)`` of the response are one turn's output. ``versions`` are ``(start, end, weight version)``."""

    start: int
    end: int
    mode: LogProbMode
    sampling: SamplingParams
    """What was in force, as far as it was recorded; processed log probs cannot do without temperature, top_p, top_k."""
    is_repeatable: bool
    """Whether all of it was recorded, so that the turn can be asked for again."""
    turn_index: int | None = None
    versions: tuple[tuple[int, int, int], ...] = ()
    guide: Guide | None = None
    """The grammar that held the output."""
    segments: tuple[tuple[int, int], ...] = ()
    """``(start, seed)`` of each part that was asked for by itself, where the turn was continued."""
    model: str = ""
    """The served name of the weights that sampled; empty where that was not recorded."""

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """``segments``, or the turn as the only one."""
        return self.segments or ((self.start, self.sampling.seed),)

    @property
    def is_masked(self) -> bool:
        """Whether the log probs are those behind a guide's mask, in which end tokens had a part that samples do not name."""
        return self.mode is LogProbMode.PROCESSED and self.guide is not None

    @property
    def is_certain(self) -> bool:
        """Whether every recorded log prob is 0 by definition: greedy, and the log of what was sampled from."""
        return self.mode is LogProbMode.PROCESSED and (self.sampling.temperature == 0 or self.sampling.top_k == 1)

    @property
    def is_scorable(self) -> bool:
        """Whether ids and these values say what the log probs are the log of.

        Penalties, a guide's mask and a ban of end tokens change processed log probs, and samples do not say which tokens end a
        reply. Raw ones are the model's own whatever held the output.
        """
        values = self.sampling
        plain = not values.presence_penalty and not values.frequency_penalty and values.repetition_penalty == 1
        return self.mode is LogProbMode.RAW or (plain and not values.min_tokens and not self.is_masked)


def read_spans(sample: Mapping[str, Any], length: int) -> tuple[Span, ...]:
    """The spans in which something trains, of a response of ``length`` tokens. Raises: SampleError."""
    metadata = sample.get("metadata")
    turns = metadata.get("turns") if isinstance(metadata, Mapping) else None
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise SampleError("metadata.turns is missing: nothing says what the log probs are the log of")
    return tuple(_span(turn, f"metadata.turns[{i}]", length) for i, turn in enumerate(turns) if _is_trained(turn))


_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
    "min_tokens": (0, 2**31 - 1),
    "repetition_penalty": (0.0, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
}
"""Of every field of ``SamplingParams``."""
_WHOLE_NUMBERS = ("top_k", "seed", "min_tokens")
_NEEDED = ("temperature", "top_p", "top_k")


def _is_trained(turn: Any) -> bool:
    return not isinstance(turn, Mapping) or turn.get("trained", True) is not False


def _span(turn: Any, where: str, length: int) -> Span:
    if not isinstance(turn, Mapping):
        raise SampleError(f"{where} is not an object")
    start, end = turn.get("start"), turn.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= length:
        raise SampleError(f"{where}: [{start}, {end}) is no span of a response of {length} tokens")
    mode = turn.get("log_prob_mode")
    if mode not in list(LogProbMode):
        raise SampleError(f"{where}.log_prob_mode is {mode!r}: nothing says what the log probs are the log of")
    index = turn.get("turn_index")
    if index is not None and (type(index) is not int or index < 1):
        raise SampleError(f"{where}.turn_index is {index!r}, not a count from 1")
    recorded = [name for name in _RANGES if turn.get(name) is not None]
    needed = _NEEDED if mode == LogProbMode.PROCESSED else ()
    return Span(
        start=start,
        end=end,
        mode=LogProbMode(mode),
        sampling=SamplingParams(**{name: _number(turn, where, name) for name in {*needed, *recorded}}),
        is_repeatable=len(recorded) == len(_RANGES),
        turn_index=index,
        versions=_versions(turn.get("versions", []), where, start, end),
        guide=_guide(turn.get("guide"), where),
        segments=_segments(turn.get("segments", []), where, start, end),
        model=_model(turn.get("model"), where),
    )


def _model(model: Any, where: str) -> str:
    if not isinstance(model, str | None):
        raise SampleError(f"{where}.model is {model!r}, not a name")
    return model or ""


def _guide(guide: Any, where: str) -> Guide | None:
    if guide is None:
        return None
    kind, text = (guide.get("kind"), guide.get("text")) if isinstance(guide, Mapping) else (None, None)
    if kind not in list(GuideKind) or not isinstance(text, str):
        raise SampleError(f"{where}.guide is not {{kind, text}} with a kind of {', '.join(GuideKind)}")
    return Guide(GuideKind(kind), text)


def _versions(runs: Any, where: str, start: int, end: int) -> tuple[tuple[int, int, int], ...]:
    for run in runs if isinstance(runs, list) else [runs]:
        whole = isinstance(run, list) and len(run) == 3 and all(type(number) is int for number in run)
        if not whole or not start <= run[0] <= run[1] <= end or not 0 <= run[2] < 2**31:
            raise SampleError(f"{where}.versions holds {run!r}, not [start, end, version] within [{start}, {end})")
    return tuple((run[0], run[1], run[2]) for run in runs)


def _segments(parts: Any, where: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    low, high = _RANGES["seed"]
    edge = start
    for part in parts if isinstance(parts, list) else [parts]:
        whole = isinstance(part, list) and len(part) == 2 and all(type(number) is int for number in part)
        if not whole or not edge <= part[0] < end or not low <= part[1] <= high:
            raise SampleError(f"{where}.segments holds {part!r}, not [start, seed] in order within [{start}, {end})")
        edge = part[0] + 1
    if parts and parts[0][0] != start:
        raise SampleError(f"{where}.segments begins at {parts[0][0]}, not at the turn's {start}")
    return tuple((part[0], part[1]) for part in parts)


def _number(turn: Mapping[str, Any], where: str, key: str) -> Any:
    value, (low, high) = turn.get(key), _RANGES[key]
    kinds = (int,) if key in _WHOLE_NUMBERS else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
        kind = "a whole number" if key in _WHOLE_NUMBERS else "a number"
        raise SampleError(f"{where}.{key} is {value!r}, not {kind} from {low} to {high}")
    return value
