"""Feeds a machine in every way: whole, unit by unit, and in random pieces. The result must not depend on it.

``cost`` counts what a run does inside the project, so that a test can say "linear" without a clock.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import adapter

Whole = TypeVar("Whole", bound=Sequence[Any])
Result = TypeVar("Result")

RANDOM_SPLITS = 4
ROOT = str(Path(adapter.__file__).parent)


def same_however_fed(run: Callable[[list[Whole]], Result], whole: Whole, seed: int = 0) -> Result:
    """What ``run`` gives for the list of pieces that make up ``whole``; asserts that each way of cutting gives the same.

    ``whole`` is a string, a list or an array; ``run`` builds the machine, feeds it the pieces and finishes it.
    """
    expected = run([whole])
    for pieces in splits(whole, seed):
        assert run(pieces) == expected, pieces
    return expected


def splits(whole: Whole, seed: int = 0) -> Iterator[list[Whole]]:
    """Unit by unit, then in pieces of random sizes, some of them empty."""
    yield [whole[at : at + 1] for at in range(len(whole))]  # type: ignore[misc]
    generator = random.Random(seed)
    for _ in range(RANDOM_SPLITS):
        cuts = sorted(generator.choices(range(len(whole) + 1), k=max(1, len(whole) // 3)))
        yield [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]  # type: ignore[misc]


def cost(run: Callable[[], object]) -> int:
    """Lines that ``run`` executes in ``adapter``, plus the characters of every string that a function there is called with.

    The second part is what finds text that is copied or scanned again and again inside one call into C.
    """
    total = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal total
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "call":
            arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            total += sum(len(frame.f_locals[name]) for name in arguments if isinstance(frame.f_locals[name], str))
        total += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return total


def assert_linear(run: Callable[[int], object], size: int) -> None:
    """``run(2 * size)`` costs about twice what ``run(size)`` does."""
    once, twice = cost(lambda: run(size)), cost(lambda: run(2 * size))
    assert once >= size, "the run is not traced"
    assert twice < 2.2 * once, (once, twice)
