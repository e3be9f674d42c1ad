"""What an export can leave out: the rest stays whole, and the ledger says what went and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import BadRequest
from adapter.trajectory import AUXILIARY_LABELS, ExportFilters, Ledger, RewardSpec, StaleScope, Trajectory
from adapter.trajectory.leaves import exported_leaves
from adapter.types import Label, LabelKind, VersionSpan
from tests.adapter.trajectory.alphabet import REWARD, check_samples, export, record
from tests.adapter.trajectory.test_properties import SESSIONS, UNTIMED, Step, played


def versions(*of_tokens: int) -> tuple[VersionSpan, ...]:
    """A span for each output token."""
    return tuple(VersionSpan(i, i + 1, version) for i, version in enumerate(of_tokens))


def session(*turns: tuple[str, tuple[VersionSpan, ...]]) -> Trajectory:
    trajectory = Trajectory()
    for text, spans in turns:
        record(trajectory, text, versions=spans)
    return trajectory


FORKED = session(
    ("s10 u20 -> a30", versions(7, 7)),
    ("s10 u20 a30 t40 -> a31", versions(5, 6)),
    ("s10 u20 a30 t41 -> a32", versions(7, 7)),
)
"""Leaf 2 holds turns 1 and 2, leaf 3 turns 1 and 3."""


@pytest.mark.parametrize(
    ("filters", "samples", "dropped"),
    [
        (ExportFilters(), ["P | [30] [5] 4 40 5 3 [31] [5]", "P | 30 5 4 41 5 3 [32] [5]"], {}),
        (
            ExportFilters(max_staleness=1, current_version=7),
            ["P | [30] [5] 4 40 5 3 31 [5]", "P | 30 5 4 41 5 3 [32] [5]"],
            {"stale": 1},
        ),
        (
            ExportFilters(max_staleness=0, current_version=7),
            ["P | [30] [5] 4 40 5 3 31 5", "P | 30 5 4 41 5 3 [32] [5]"],
            {"stale": 2},
        ),
        (ExportFilters(max_staleness=0, current_version=8), [], {"stale": 6}),
        (
            ExportFilters(max_staleness=2, current_version=7),
            ["P | [30] [5] 4 40 5 3 [31] [5]", "P | 30 5 4 41 5 3 [32] [5]"],
            {},
        ),
        (
            ExportFilters(max_staleness=1, current_version=7, stale=StaleScope.SAMPLES),
            ["P | [30] [5] 4 41 5 3 [32] [5]"],
            {"stale": 2},
        ),
        (ExportFilters(max_staleness=0, current_version=8, stale=StaleScope.SAMPLES), [], {"stale": 6}),
    ],
)
def test_staleness(filters: ExportFilters, samples: list[str], dropped: dict[str, int]) -> None:
    made = export(FORKED, filters=filters)
    check_samples(made.samples, samples)
    assert made.ledger == Ledger(6, 6 - sum(dropped.values()), dropped)


def test_a_token_without_a_version_is_stale_under_any_limit() -> None:
    trajectory = session(("s10 u20 -> a30", ()))
    assert export(trajectory, filters=ExportFilters(max_staleness=9, current_version=9)).ledger == Ledger(
        2, 0, {"stale": 2}
    )
    assert export(trajectory, filters=ExportFilters(current_version=9)).ledger == Ledger(2, 2, {})


def test_weights_newer_than_the_trainers_are_not_stale() -> None:
    made = export(FORKED, filters=ExportFilters(max_staleness=0, current_version=5))
    assert made.ledger == Ledger(6, 6, {})


def test_a_truncated_leaf_leaves_what_it_shares_to_the_next() -> None:
    trajectory = session(("s10 u20 -> a30", ()), ("s10 u20 a30 t40 -> a31 !length", ()), ("s10 u20 a30 t41 -> a32", ()))
    made = export(trajectory, filters=ExportFilters(drop_truncated=True))
    check_samples(made.samples, ["P | [30] [5] 4 41 5 3 [32] [5]"])
    assert made.ledger == Ledger(6, 4, {"truncated": 2})


def test_a_truncated_turn_that_the_agent_went_on_from_is_no_truncated_leaf() -> None:
    trajectory = session(("s10 u20 -> a30 !length; s10 u20 a30 t40 -> a31", ()))
    assert export(trajectory, filters=ExportFilters(drop_truncated=True)).ledger == Ledger(4, 4, {})


def labelled(*turns: tuple[str, LabelKind]) -> Trajectory:
    trajectory = Trajectory()
    for text, kind in turns:
        record(trajectory, text, label=Label(kind))
    return trajectory


MAIN, COMPACTION, TITLE = LabelKind.MAIN, LabelKind.COMPACTION, LabelKind.TITLE
COMPACTED = labelled(
    ("s11 u20 -> a36", TITLE),
    ("s10 u20 -> a30", MAIN),
    ("s10 u20 a30 u21 -> a31", COMPACTION),
    ("s10 u20 a30 t40 -> a32", MAIN),
)
"""A title under a system prompt of its own; a compaction in the middle of the main line, before its second turn."""
WITHOUT_AUXILIARY = ExportFilters(frozenset(AUXILIARY_LABELS))


def test_auxiliary_calls_train_unless_they_are_filtered() -> None:
    made = export(COMPACTED)
    check_samples(
        made.samples,
        ["1 11 5 2 20 5 3 | [36] [5]", "P | [30] [5] 2 21 5 3 [31] [5]", "P | 30 5 4 40 5 3 [32] [5]"],
    )
    assert [span["label"] for span in made.samples[1].metadata["turns"]] == ["main", "compaction"]


def test_without_auxiliary_calls_the_main_line_is_one_sample() -> None:
    made = export(COMPACTED, filters=WITHOUT_AUXILIARY)
    check_samples(made.samples, ["P | [30] [5] 4 40 5 3 [32] [5]"])
    assert made.ledger == Ledger(8, 4, {"label:compaction": 2, "label:title": 2})


def test_a_main_line_that_only_auxiliary_calls_go_on_from_is_exported_once() -> None:
    trajectory = labelled(
        ("s10 u20 -> a30", MAIN), ("s10 u20 a30 u21 -> a31", COMPACTION), ("s10 u20 a30 u22 -> a32", TITLE)
    )
    made = export(trajectory, filters=WITHOUT_AUXILIARY, reward=RewardSpec(REWARD, {2: REWARD}))
    check_samples(made.samples, ["P | [30] [5]"])
    assert made.samples[0].metadata["leaf"] == 2, "the leaf that the session shows"
    assert made.ledger == Ledger(6, 2, {"label:compaction": 2, "label:title": 2})


def test_leaves_that_end_alike_are_one() -> None:
    chains = list(
        labelled(
            ("s10 u20 -> a30", MAIN), ("s10 u20 a30 u21 -> a31", COMPACTION), ("s10 u20 a30 u22 -> a32", TITLE)
        ).chains()
    )
    assert [leaf.index for leaf in exported_leaves(chains, ExportFilters())] == [2, 3]
    assert [leaf.index for leaf in exported_leaves(chains, WITHOUT_AUXILIARY)] == [2]


def test_an_auxiliary_call_that_the_main_line_goes_on_from_is_context() -> None:
    trajectory = labelled(("s10 u20 -> a30", TITLE), ("s10 u20 a30 t40 -> a31", MAIN))
    made = export(trajectory, filters=WITHOUT_AUXILIARY)
    check_samples(made.samples, ["P | 30 5 4 40 5 3 [31] [5]"])
    assert made.ledger == Ledger(4, 2, {"label:title": 2})


def test_a_turn_without_a_label_is_not_filtered() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30")
    assert export(trajectory, filters=ExportFilters(frozenset(LabelKind))).ledger == Ledger(2, 2, {})


@UNTIMED
@given(
    SESSIONS,
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.sampled_from(LabelKind)), min_size=8, max_size=8),
    st.builds(
        ExportFilters,
        drop_labels=st.frozensets(st.sampled_from(LabelKind)),
        max_staleness=st.one_of(st.none(), st.integers(0, 3)),
        current_version=st.just(4),
        stale=st.sampled_from(StaleScope),
        drop_truncated=st.booleans(),
    ),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_whatever_is_filtered_the_ledger_balances(
    steps: list[Step], kinds: list[tuple[int, bool, LabelKind]], filters: ExportFilters, limit: int | None
) -> None:
    """And what trains is allowed to, once."""
    trajectory = Trajectory()
    for drawn, (version, truncated, kind) in zip(played(steps), kinds, strict=False):
        size = drawn.record.output_ids.size
        trajectory.record_turn(
            turn=replace(
                drawn.record,
                versions=(VersionSpan(0, size, version),) if size else (),
                finish_reason="length" if truncated else "stop",
                label=Label(kind),
            ),
            prompt_messages=drawn.prompt_messages,
            response_message=drawn.response_message,
        )
    made = export(trajectory, filters=filters, max_sample_tokens=limit)
    trained_turns = [span["turn_index"] for each in made.samples for span in each.metadata["turns"] if span["trained"]]
    assert len(trained_turns) == len(set(trained_turns))
    for sample in made.samples:
        assert not (filters.drop_truncated and sample.metadata["truncated"])
        assert not any(span["trained"] and span["label"] in filters.drop_labels for span in sample.metadata["turns"])
        for start, end, version in (spans for turn in sample.metadata["turns"] for spans in turn["versions"]):
            stale = filters.max_staleness is not None and version < 4 - filters.max_staleness
            assert not (stale and any(sample.loss_mask[start:end]))


@pytest.mark.parametrize(
    ("document", "filters"),
    [
        (None, ExportFilters()),
        ({}, ExportFilters()),
        ({"drop_labels": ["title", "count"]}, ExportFilters(frozenset({LabelKind.TITLE, LabelKind.COUNT}))),
        ({"max_staleness": 2, "current_version": 5}, ExportFilters(max_staleness=2, current_version=5)),
        ({"max_staleness": 2}, ExportFilters(max_staleness=2)),
        ({"stale": "samples", "drop_truncated": True}, ExportFilters(stale=StaleScope.SAMPLES, drop_truncated=True)),
    ],
)
def test_parse(document: Any, filters: ExportFilters) -> None:
    assert ExportFilters.parse(document) == filters


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "filters"),
        ({"max_stale": 1}, "filters.max_stale"),
        ({"drop_labels": "title"}, "filters.drop_labels"),
        ({"drop_labels": [1]}, "filters.drop_labels"),
        ({"drop_labels": ["title", "tittle"]}, "filters.drop_labels"),
        ({"max_staleness": -1}, "filters.max_staleness"),
        ({"max_staleness": True}, "filters.max_staleness"),
        ({"current_version": 1.5}, "filters.current_version"),
        ({"stale": "rows"}, "filters.stale"),
        ({"stale": []}, "filters.stale"),
        ({"drop_truncated": 1}, "filters.drop_truncated"),
    ],
)
def test_parse_names_the_wrong_field(document: Any, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ExportFilters.parse(document)
    assert caught.value.field == field


def test_a_limit_counts_from_a_version() -> None:
    limit = ExportFilters(max_staleness=0)
    with pytest.raises(BadRequest) as caught:
        export(FORKED, filters=limit)
    assert caught.value.field == "filters.current_version"
    assert export(FORKED, filters=limit.at(lambda model: 7)).ledger.dropped == {"stale": 2}
    with pytest.raises(BadRequest, match=r"needs filters\.current_version to count from"):
        export(FORKED, filters=limit.at(lambda model: None))
    assert export(FORKED, filters=replace(limit, current_version=7).at(lambda model: 99)).ledger.dropped == {"stale": 2}
