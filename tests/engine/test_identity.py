"""Whether the model that answers is the one that was probed, told by its stats."""

from __future__ import annotations

from typing import Any

import pytest

from engine.identity import contradiction, difference, identity_of
from engine.types import EngineInfo, GuideKind, LogProbMode

STATS = {
    "op": "stats",
    "weight_version": 3,
    "path": "/models/a",
    "live": 2,
    "instance": "0123456789abcdef",
    "vocab_size": 1000,
    "max_seq_len": 4096,
    "log_prob_mode": "raw",
    "guided_decoding": ["json", "regex"],
    "loras": [],
}
INFO = EngineInfo("m", LogProbMode.RAW, 4096, 1000, 3, guides=frozenset({GuideKind.REGEX, GuideKind.JSON}))


@pytest.mark.parametrize("change", [{}, {"live": 3}, {"weight_version": 4, "path": "/models/b"}, {"waiting": 7}])
def test_what_changes_while_it_serves_makes_no_other_of_it(change: dict[str, Any]) -> None:
    assert difference(identity_of(STATS), identity_of(STATS | change)) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"instance": "f"}, "its start of the model was 0123456789abcdef and is f"),
        ({"vocab_size": 999}, "its vocabulary was 1000 and is 999"),
        ({"max_seq_len": 100}, "its longest sequence was 4096 and is 100"),
        ({"log_prob_mode": "processed"}, "its log-prob mode was raw and is processed"),
        ({"guided_decoding": []}, r"its guided decoding was ['json', 'regex'] and is []"),
        ({"loras": ["sql"]}, "its LoRA adapters was [] and is ['sql']"),
        ({"configuration": {"a": "1"}}, "its configuration was None and is {'a': '1'}"),
    ],
)
def test_what_makes_another_of_it(change: dict[str, Any], told: str) -> None:
    assert difference(identity_of(STATS), identity_of(STATS | change)) == told


def test_one_that_no_longer_says_which_it_is_is_another() -> None:
    less = {key: value for key, value in STATS.items() if key != "instance"}
    assert difference(identity_of(STATS), identity_of(less)) is not None
    assert difference(identity_of(less), identity_of(less)) is None


def test_of_a_configuration_the_names_are_told_that_differ() -> None:
    before, after = ({"configuration": {"a": "1", "b": value, value: ""}} for value in ("2", "3"))
    assert difference(before, after) == "its configuration has another 2, 3, b"


@pytest.mark.parametrize("stats", [STATS, {}, {"vocab_size": 1000}])
def test_stats_that_agree_with_the_configuration(stats: dict[str, Any]) -> None:
    assert contradiction(INFO, identity_of(stats)) is None


@pytest.mark.parametrize(
    "change", [{"vocab_size": 999}, {"max_seq_len": 1}, {"log_prob_mode": "x"}, {"loras": ["sql"]}]
)
def test_stats_that_contradict_the_configuration(change: dict[str, Any]) -> None:
    assert "by its stats and" in (contradiction(INFO, identity_of(STATS | change)) or "")
