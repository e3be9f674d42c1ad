"""Turns in, samples out: the baseline's cases, one row each, in the notation of ``alphabet``."""

from __future__ import annotations

import pytest

from tests.adapter.trajectory.alphabet import check_samples, export, recorded

DRIFT_IN_RESPONSE = "s10 u20 -> a30; s10 u20 a30 t40 [P 30 99 4 40 5 3] -> a31"
FORKED = ["P | [30] [5]", "P 30 99 4 40 5 3 | [31] [5]"]
REWRITTEN = "s10 u20 -> a30; s10 u20 a35 t40 -> a31"
NOT_MERGED = ["P | [30] [5]", "P 35 5 4 40 5 3 | [31] [5]"]
LONG_OUTPUT = "s10 u20 -> a30 = 30 31 32 33; s10 u20 a30 t40 [P 30 31 32 99 4 40 5 3] -> a50 = 50 51"

TREE_SHAPE = [
    ("1.1 one turn", 1024, "s10 u20 -> a30", ["P | [30] [5]"]),
    (
        "1.2 clean with a tool",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31",
        ["P | [30] [5] 4 40 5 3 [31] [5]"],
    ),
    (
        "1.3 system differs",
        1024,
        "s10 u20 -> a30; s11 u20 -> a30",
        ["P | [30] [5]", "1 11 5 2 20 5 3 | [30] [5]"],
    ),
    (
        "1.4 user differs",
        1024,
        "s10 u20 -> a30; s10 u21 -> a31",
        ["P | [30] [5]", "1 10 5 2 21 5 3 | [31] [5]"],
    ),
    ("1.5 same prompt twice", 1024, "s10 u20 -> a30; s10 u20 -> a31", ["P | [30] [5]", "P | [31] [5]"]),
    (
        "1.6 tool fork",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t41 -> a32",
        ["P | [30] [5] 4 40 5 3 [31] [5]", "P | 30 5 4 41 5 3 [32] [5]"],
    ),
    (
        "1.7 ids differ, messages are equal",
        1024,
        "s10 u20 -> a30; s10 u20 [1 99 10 5 2 20 5 3] -> a31",
        ["P | [30] [5]", "1 99 10 5 2 20 5 3 | [31] [5]"],
    ),
    (
        "1.8 two tool results",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 t41 -> a31",
        ["P | [30] [5] 4 40 5 4 41 5 3 [31] [5]"],
    ),
    ("1.10 empty output", 1024, "s10 u20 -> none !length", []),
]

LINEARIZATION = [
    (
        "2.3 drift in the first prompt",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 [1 10 5 2 20 5 99 3 30 5 4 40 5 3] -> a31",
        ["P | [30] [5]", "1 10 5 2 20 5 99 3 30 5 4 40 5 3 | [31] [5]"],
    ),
    ("2.4 drift in the newest response", 1024, DRIFT_IN_RESPONSE, ["P | 30 99 4 40 5 3 [31] [5]"]),
    ("2.5 the same, threshold 1", 1, DRIFT_IN_RESPONSE, FORKED),
    ("2.6 the same, threshold 0", 0, DRIFT_IN_RESPONSE, FORKED),
    (
        "2.7 drift in an older response",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 [P 30 99 4 40 5 3 31 5 4 41 5 3] -> a32",
        ["P | [30] [5] 4 40 5 3 [31] [5]", "P 30 99 4 40 5 3 31 5 4 41 5 3 | [32] [5]"],
    ),
    (
        "2.11 foreign assistant",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 a38 t41 -> a32",
        ["P | [30] [5] 4 40 5 3 [31] [5] 3 38 5 4 41 5 3 [32] [5]"],
    ),
]

BOTH_LAYERS = [
    ("3.1 rewrite merged", 1024, REWRITTEN, ["P 35 5 4 40 5 3 | [31] [5]"]),
    ("3.2 rewrite, threshold 1", 1, REWRITTEN, NOT_MERGED),
    ("3.3 rewrite, threshold 0", 0, REWRITTEN, NOT_MERGED),
    (
        "3.4 ambiguous",
        1024,
        "s10 u20 -> a30; s10 u20 -> a31; s10 u20 a35 t40 -> a32",
        ["P | [30] [5]", "P | [31] [5]", "P 35 5 4 40 5 3 | [32] [5]"],
    ),
    (
        "3.5 after a merge",
        1024,
        REWRITTEN + "; s10 u20 a35 t40 a31 t41 -> a32",
        ["P 35 5 4 40 5 3 | [31] [5] 4 41 5 3 [32] [5]"],
    ),
    (
        "3.6 tree fork and drift",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31;"
        "s10 u20 a30 t40 a31 t42 [1 10 5 2 20 5 99 3 30 5 4 40 5 3 31 5 4 42 5 3] -> a32; s10 u20 a30 t41 -> a33",
        [
            "P | [30] [5] 4 40 5 3 [31] [5]",
            "1 10 5 2 20 5 99 3 30 5 4 40 5 3 31 5 4 42 5 3 | [32] [5]",
            "P | 30 5 4 41 5 3 [33] [5]",
        ],
    ),
    (
        "3.7 three leaves",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 -> a32;"
        "s10 u20 a30 t40 a31 t42 -> a33; s10 u20 a30 t40 a31 t43 -> a34",
        [
            "P | [30] [5] 4 40 5 3 [31] [5] 4 41 5 3 [32] [5]",
            "P | 30 5 4 40 5 3 31 5 4 42 5 3 [33] [5]",
            "P | 30 5 4 40 5 3 31 5 4 43 5 3 [34] [5]",
        ],
    ),
    (
        "3.8 mixed, six turns",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 -> a32;"
        "s10 u20 a30 t40 a31 t41 a32 t42 [P 30 5 4 40 5 3 31 5 4 41 5 3 32 5 4 42 99 3] -> a33;"
        "s10 u20 a30 t40 a31 t41 a32 t42 a33 t43 -> a34;"
        "s10 u20 a30 t40 a31 t41 a32 t42 a33 t43 a34 t44"
        " [1 10 5 2 20 5 99 3 30 5 4 40 5 3 31 5 4 41 5 3 32 5 4 42 5 3 33 5 4 43 5 3 34 5 4 44 5 3] -> a35",
        [
            "P | [30] [5] 4 40 5 3 [31] [5] 4 41 5 3 [32] [5] 4 42 99 3 [33] [5]",
            "P 30 5 4 40 5 3 31 5 4 41 5 3 32 5 4 42 5 3 33 5 4 43 5 3 | [34] [5]",
            "1 10 5 2 20 5 99 3 30 5 4 40 5 3 31 5 4 41 5 3 32 5 4 42 5 3 33 5 4 43 5 3 34 5 4 44 5 3 | [35] [5]",
        ],
    ),
]

BOUNDARIES = [
    (
        "4.6 an output as long as the threshold forks",
        2,
        LONG_OUTPUT,
        ["P | [30] [31] [32] [33]", "P 30 31 32 99 4 40 5 3 | [50] [51]"],
    ),
    ("4.6 a shorter one realigns", 3, LONG_OUTPUT, ["P | 30 31 32 99 4 40 5 3 [50] [51]"]),
]

NOT_IN_THE_BASELINES_TESTS = [
    (
        "6 a clean turn goes on after a realign",
        1024,
        DRIFT_IN_RESPONSE + "; s10 u20 a30 t40 a31 t41 [P 30 99 4 40 5 3 31 5 4 41 5 3] -> a32",
        ["P | 30 99 4 40 5 3 [31] [5] 4 41 5 3 [32] [5]"],
    ),
    (
        "6 two realigns in a row",
        1024,
        DRIFT_IN_RESPONSE + "; s10 u20 a30 t40 a31 t41 [P 30 99 4 40 5 3 31 98 4 41 5 3] -> a32",
        ["P | 30 99 4 40 5 3 31 98 4 41 5 3 [32] [5]"],
    ),
    (
        "6 drift before the newest response after a realign",
        1024,
        DRIFT_IN_RESPONSE + "; s10 u20 a30 t40 a31 t41 -> a32",
        ["P | 30 99 4 40 5 3 [31] [5]", "P 30 5 4 40 5 3 31 5 4 41 5 3 | [32] [5]"],
    ),
    ("6 an empty leaf beside a normal one", 1024, "s10 u20 -> none !length; s10 u20 -> a30", ["P | [30] [5]"]),
    (
        "6 a prompt shorter than what is held, ending in the newest response",
        1024,
        "s10 u20 -> a30; s10 u20 a30 [P 30] -> a31",
        ["P | 30 [31] [5]"],
    ),
    (
        "6 a prompt that ends where the newest response begins",
        1024,
        "s10 u20 -> a30; s10 u20 a30 [P] -> a31",
        ["P | [31] [5]"],
    ),
    (
        "6 a prompt that ends before the newest response",
        1024,
        "s10 u20 -> a30; s10 u20 a30 [1 10 5 2 20 5] -> a31",
        ["P | [30] [5]", "1 10 5 2 20 5 | [31] [5]"],
    ),
    (
        "6 a prompt that adds nothing",
        1024,
        "s10 u20 -> a30; s10 u20 a30 [P 30 5] -> a31",
        ["P | [30] [5] [31] [5]"],
    ),
    (
        "6 a clean turn goes on after an empty output",
        1024,
        "s10 u20 -> a30 = ; s10 u20 a30 t40 [P 5 4 40 5 3] -> a31",
        ["P | 5 4 40 5 3 [31] [5]"],
    ),
    (
        "6 drift before an empty output forks",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31 = ; s10 u20 a30 t40 a31 t41 [P 30 99 4 40 5 3 5 4 41 5 3] -> a32",
        ["P | [30] [5] 4 40 5 3", "P 30 99 4 40 5 3 5 4 41 5 3 | [32] [5]"],
    ),
    (
        "6 a rewrite of the last message",
        1024,
        "s10 u20 -> a30; s10 u20 a35 -> a31",
        ["P 35 5 3 | [31] [5]"],
    ),
    (
        "6 no merge onto a reply that went on",
        1024,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a35 t40 -> a32",
        ["P | [30] [5] 4 40 5 3 [31] [5]", "P 35 5 4 40 5 3 | [32] [5]"],
    ),
    (
        "6 no merge onto a message that a client brought",
        1024,
        "s10 u20 a38 t40 -> a30; s10 u20 a35 t40 -> a31",
        ["P 38 5 4 40 5 3 | [30] [5]", "P 35 5 4 40 5 3 | [31] [5]"],
    ),
    (
        "6 no merge where the client goes on with another role",
        1024,
        "s10 u20 -> a30; s10 u20 u21 -> a31",
        ["P | [30] [5]", "1 10 5 2 20 5 2 21 5 3 | [31] [5]"],
    ),
    (
        "6 the merge's gate is the abandoned output's length, exclusive",
        2,
        REWRITTEN,
        NOT_MERGED,
    ),
    ("6 one token above the gate", 3, REWRITTEN, ["P 35 5 4 40 5 3 | [31] [5]"]),
    (
        "6 an empty reply is rewritten too",
        1024,
        "s10 u20 -> none !length; s10 u20 a35 t40 -> a31",
        ["P 35 5 4 40 5 3 | [31] [5]"],
    ),
    (
        "6 of equal replies the first goes on",
        1024,
        "s10 u20 -> a30; s10 u20 -> a30; s10 u20 a30 t40 -> a31",
        ["P | [30] [5] 4 40 5 3 [31] [5]", "P | [30] [5]"],
    ),
    (
        "6 what one leaf realigned away is context in the next leaf too",
        1024,
        DRIFT_IN_RESPONSE + "; s10 u20 a30 t41 -> a32",
        ["P | 30 99 4 40 5 3 [31] [5]", "P | 30 5 4 41 5 3 [32] [5]"],
    ),
]


@pytest.mark.parametrize(
    ("threshold", "turns", "samples"),
    [
        pytest.param(*case, id=name)
        for name, *case in TREE_SHAPE + LINEARIZATION + BOTH_LAYERS + BOUNDARIES + NOT_IN_THE_BASELINES_TESTS
    ],
)
def test_turns_become_samples(threshold: int, turns: str, samples: list[str]) -> None:
    check_samples(export(recorded(turns, threshold)).samples, samples)
