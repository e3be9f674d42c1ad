"""The packed tree holds each distinct token once, and gives back exactly the samples that were packed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.trajectory import RewardSpec, Sample, Trajectory
from adapter.trajectory.packing import PackedTree, RowError, pack, unpack
from adapter.types import VersionSpan
from tests.adapter.trajectory.alphabet import record, recorded
from tests.adapter.trajectory.test_properties import SESSIONS, THRESHOLDS, UNTIMED, Step, played, trajectory_of

FAN_OUT = (
    "s10 u20 -> a30; s10 u20 a30 t40 -> a31;"
    "s10 u20 a30 t40 a31 t41 -> a32; s10 u20 a30 t40 a31 t42 -> a33; s10 u20 a30 t40 a31 t43 -> a34"
)
COUSINS = (
    "s10 u20 -> a30;"
    "s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 -> a32; s10 u20 a30 t40 a31 t42 -> a33;"
    "s10 u20 a30 t45 -> a34; s10 u20 a30 t45 a34 t41 -> a35; s10 u20 a30 t45 a34 t42 -> a36"
)
DRIFT_FORK = "s10 u20 -> a30; s10 u20 a30 t40 [1 10 5 2 20 5 99 3 30 5 4 40 5 3] -> a31"
REPLAYED_IN_THE_PROMPT = "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 [P 30 5 4 40 5 3 99 5] -> a32"
TWINS = "s10 u20 -> a30; s10 u20 -> a30; s10 u20 a30 t40 -> a31"
"""Two turns that sampled the same ids after the same prompt; a third goes on from the first."""
LINE = "s10 u20 -> a30; s10 u20 a30 t40 -> a31"


def rows_of(trajectory: Trajectory, **options: Any) -> list[dict[str, Any]]:
    return [sample.to_dict() for sample in trajectory.export(base_sample=Sample(index=7), **options).samples]


def distinct_tokens(rows: list[dict[str, Any]]) -> int:
    """Nodes of the plain trie over the ids of all paths."""
    return len({tuple(row["tokens"][: i + 1]) for row in rows for i in range(len(row["tokens"]))})


def check_tree(tree: PackedTree, rows: list[dict[str, Any]]) -> None:
    """Judged token by token, without ``unpack``."""
    assert tree.loss_mask.sum() == sum(sum(row["loss_mask"]) for row in rows)
    assert np.array_equal(tree.loss_mask == 1, tree.owner != -1)
    for index, (row, leaf) in enumerate(zip(rows, tree.leaves, strict=True)):
        node, versions = leaf["last_token"], flat_versions(row)
        for back in range(1, len(row["tokens"]) + 1):
            in_response = back <= row["response_length"]
            trained = in_response and row["loss_mask"][-back] == 1
            assert tree.tokens[node] == row["tokens"][-back]
            assert tree.position_ids[node] == len(row["tokens"]) - back
            assert (tree.owner[node] == index) == trained
            if trained:
                assert tree.log_probs[node] == row["rollout_log_probs"][-back]
                assert tree.weight_versions[node] == versions[-back]
            node = int(tree.parent[node])
        assert node == -1


def flat_versions(row: dict[str, Any]) -> list[int]:
    versions = [-1] * row["response_length"]
    for turn in row["metadata"]["turns"]:
        for start, end, version in turn["versions"]:
            versions[start:end] = [version] * (end - start)
    return versions


@pytest.mark.parametrize(
    ("turns", "samples", "distinct"),
    [
        pytest.param("s10 u20 -> none", 0, 0, id="nothing"),
        pytest.param(LINE, 1, 15, id="one sample"),
        pytest.param(FAN_OUT, 3, 15 + 6 + 5 + 5, id="three-way fan-out"),
        pytest.param(COUSINS, 4, 9 + (6 + 6 + 5) + (5 + 6 + 5), id="cousins"),
        pytest.param(DRIFT_FORK, 2, 9 + 10, id="a fork within the prompt"),
        pytest.param(REPLAYED_IN_THE_PROMPT, 1, 9 + 6 + 2, id="what was sampled is part of a prompt"),
        pytest.param(TWINS, 2, 9 + 2 + 6, id="the same ids sampled twice"),
    ],
)
def test_each_distinct_token_stands_once(turns: str, samples: int, distinct: int) -> None:
    rows = rows_of(recorded(turns))
    tree = pack(rows)
    assert len(rows) == samples
    check_tree(tree, rows)
    assert unpack(tree) == rows
    assert tree.tokens.size == distinct


def test_twins_keep_a_token_each_and_context_joins_the_longest_path() -> None:
    """Turn 1 goes on in the first sample; as the second one's whole output equals turn 1's, it stands beside it."""
    rows = rows_of(recorded(TWINS))
    assert [row["loss_mask"] for row in rows] == [[1, 1, 0, 0, 0, 0, 1, 1], [1, 1]]
    tree = pack(rows)
    assert tree.parent[[7, 15]].tolist() == [6, 6], "both outputs follow the prompt's last token"
    assert tree.owner[[7, 8, 15, 16]].tolist() == [0, 0, 1, 1]
    context = {**rows[0], "loss_mask": [0] * 8, "rollout_log_probs": [0.0] * 8}
    for order in ([*rows, context], [*rows[::-1], context], [context, *rows], [context, *rows[::-1]]):
        again = pack(order)
        assert again.tokens.size == 17
        assert unpack(again) == order


def row(prompt: str, outputs: list[tuple[int, bool, str]]) -> dict[str, Any]:
    """``outputs`` are (turn index or 0 for context, whether it trains, ids)."""
    response = [(int(word), turn, trains) for turn, trains, text in outputs for word in text.split()]
    spans, start = [], 0
    for turn, trains, text in outputs:
        end = start + len(text.split())
        if turn:
            spans.append({"turn_index": turn, "start": start, "end": end, "trained": trains, "versions": []})
        start = end
    return {
        "tokens": [*map(int, prompt.split()), *(token for token, _, _ in response)],
        "response_length": len(response),
        "loss_mask": [int(trains) for _, _, trains in response],
        "rollout_log_probs": [-0.5 if trains else 0.0 for _, _, trains in response],
        "metadata": {"turns": spans},
    }


def test_the_same_conversation_of_two_sessions_is_trained_twice() -> None:
    rows = [*rows_of(recorded(LINE)), *rows_of(recorded(LINE))]
    tree = pack(rows)
    assert tree.tokens.size == 7 + 8 + 8
    assert unpack(tree) == rows


def test_a_prompt_joins_whichever_twin_it_shares_most_with() -> None:
    """Also one that branched off before the point to which the other is shared."""
    rows = [
        row("1 2", [(1, True, "30 5")]),
        row("1 2", [(2, True, "30 5"), (0, False, "4 41"), (3, True, "31 5")]),
        row("1 2 30 5 4 41 31 5 7", [(4, True, "9")]),
    ]
    for order in (rows, [rows[1], rows[0], rows[2]]):
        tree = pack(order)
        assert tree.tokens.size == 2 + 2 + 6 + 2
        assert unpack(tree) == order


def test_a_turns_context_is_where_the_turn_trains() -> None:
    """Though a prompt that nobody can tell from it, and its twin, stand there first."""
    rows = [
        row("1 2 30 5 7", [(5, True, "8")]),
        row("1 2", [(1, True, "30 5")]),
        row("1 2", [(2, False, "30 5"), (0, False, "4"), (3, True, "31")]),
        row("1 2", [(2, True, "30 5")]),
    ]
    tree = pack(rows)
    assert tree.tokens.size == 2 + 2 + 2 + 2 + 2
    assert unpack(tree) == rows
    before_31 = tree.parent[tree.parent[tree.leaves[2]["last_token"]]]
    assert tree.owner[[before_31, tree.parent[before_31]]].tolist() == [3, 3]


def test_a_path_may_end_within_another() -> None:
    rows = rows_of(recorded(LINE)) + rows_of(recorded(LINE), max_sample_tokens=14)
    rows[0] |= {"loss_mask": [0] * 8, "rollout_log_probs": [0.0] * 8}
    tree = pack(rows)
    assert [leaf["last_token"] for leaf in tree.leaves] == [14, 13]
    assert tree.loss_mask.tolist() == [0] * 7 + [1, 1, 0, 0, 0, 0, 1, 0]
    assert unpack(tree) == rows


def test_an_overlong_path_is_packed_as_far_as_it_was_exported() -> None:
    rows = rows_of(recorded(FAN_OUT + "; s10 u20 a30 t40 a31 t43 a34 t44 -> a35"), max_sample_tokens=23)
    assert [len(row["tokens"]) for row in rows] == [21, 21, 23]
    tree = pack(rows)
    check_tree(tree, rows)
    assert unpack(tree) == rows
    assert tree.tokens.size == distinct_tokens(rows)


def test_rewards_and_metadata_are_those_of_the_leaf() -> None:
    rows = rows_of(recorded(FAN_OUT), reward=RewardSpec(leaf_rewards={3: 1.0, 4: {"pass": 0.0}}))
    leaves = pack(rows).leaves
    assert [leaf["reward"] for leaf in leaves] == [1.0, {"pass": 0.0}, None]
    assert [leaf["metadata"]["leaf"] for leaf in leaves] == [3, 4, 5]
    assert not {"tokens", "loss_mask", "rollout_log_probs"} & set(leaves[0])


def test_a_shared_token_has_the_version_of_the_weights_that_sampled_it() -> None:
    """Where it comes first, as a part of a prompt, nobody says which that is."""
    rows = rows_of(recorded_with_version("s10 u20 -> a30; s10 u20 a30 t40 -> a31", 3))
    as_prompt = {**rows[0], "response_length": 2, "loss_mask": [0, 0], "rollout_log_probs": [0.0, 0.0], "metadata": {}}
    tree = pack([as_prompt, *rows])
    assert tree.tokens.size == 15
    assert tree.weight_versions.tolist() == [-1] * 7 + [3, 3, -1, -1, -1, -1, 3, 3]


def recorded_with_version(turns: str, version: int) -> Trajectory:
    trajectory = Trajectory()
    record(trajectory, turns, versions=(VersionSpan(0, 2, version),))
    return trajectory


@UNTIMED
@given(SESSIONS, THRESHOLDS, st.one_of(st.none(), st.integers(8, 40)), st.randoms(use_true_random=False))
def test_unpacking_gives_back_the_flat_export(steps: list[Step], threshold: int, limit: int | None, order: Any) -> None:
    trajectory, _ = trajectory_of(played(steps), threshold)
    rows = rows_of(trajectory, max_sample_tokens=limit)
    order.shuffle(rows)
    tree = pack(rows)
    check_tree(tree, rows)
    assert unpack(tree) == rows
    assert unpack(PackedTree.from_dict(json.loads(json.dumps(tree.to_dict())))) == rows
    assert distinct_tokens(rows) <= tree.tokens.size <= sum(len(row["tokens"]) for row in rows)
    if not twins(rows):
        assert tree.tokens.size == distinct_tokens(rows)


def twins(rows: list[dict[str, Any]]) -> bool:
    """Whether two turns sampled the same token at the end of the same path."""
    sampled: dict[tuple[int, ...], int] = {}
    for row in rows:
        prompt = len(row["tokens"]) - row["response_length"]
        for turn in row["metadata"]["turns"]:
            for end in range(prompt + turn["start"] + 1, prompt + turn["end"] + 1):
                if sampled.setdefault(tuple(row["tokens"][:end]), turn["turn_index"]) != turn["turn_index"]:
                    return True
    return False


def test_forks_within_forks() -> None:
    rows, tokens = [], [1]
    for i in range(100):
        tokens = [*tokens, 2, 3]
        rows.append(flat([*tokens, 100 + i], 1))
    tree = pack(rows)
    assert tree.tokens.size == 1 + 2 * 100 + 100
    assert unpack(tree) == rows


def flat(tokens: list[int], response_length: int) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "response_length": response_length,
        "loss_mask": [1] * response_length,
        "rollout_log_probs": [-0.5] * response_length,
        "metadata": {"turns": []},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "sample 1: tokens is missing or no list"),
        ({"tokens": [[1, 2]]}, "sample 1: tokens has 2 dimensions"),
        ({"tokens": []}, "sample 1: 0 tokens, response_length 2"),
        ({"tokens": [2**31, 2, 3]}, "sample 1: tokens holds something else than integers from 0"),
        ({"tokens": [1.5, 2, 3]}, "sample 1: tokens holds something else than integers from 0"),
        ({"tokens": [-1, 2, 3]}, "sample 1: tokens holds something else than integers from 0"),
        ({"tokens": [[1], 2, 3]}, "sample 1: tokens is no list of numbers"),
        ({"rollout_log_probs": ["a", "b"]}, "sample 1: rollout_log_probs holds something else"),
        ({"loss_mask": [1]}, "sample 1: 3 tokens, response_length 2, 1 in loss_mask"),
        ({"loss_mask": [1, 2]}, "sample 1: loss_mask holds something else"),
        ({"loss_mask": [1, 0]}, "sample 1: a token that does not train has a log prob"),
        ({"response_length": None}, "sample 1: 3 tokens, response_length None"),
        ({"metadata": {"turns": [3]}}, "sample 1: metadata.turns is not as an export writes it"),
    ],
)
def test_a_sample_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    good = flat([1, 2, 3], 2)
    with pytest.raises(RowError) as caught:
        pack([good, good | change])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "the format is 'other'"),
        ({"tokens": [1, 2]}, "parent is int32"),
        ({"parent": [-1, 1, 1]}, "a parent does not stand before its child"),
        ({"parent": [-2, 0, 1]}, "a parent does not stand before its child"),
        ({"owner": [-1, 0, 1]}, "an owner is no leaf"),
        ({"leaves": None}, "a part is missing or broken"),
        ({"leaves": [{"last_token": 3, "response_length": 2}]}, "leaf 0: last_token is 3"),
        ({"leaves": [{"last_token": True, "response_length": 2}]}, "leaf 0: last_token is True"),
        ({"leaves": [{"last_token": 2, "response_length": 4}]}, "leaf 0: response_length is 4 on a path of 3"),
    ],
)
def test_a_packed_tree_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    document = pack([flat([1, 2, 3], 2)]).to_dict()
    with pytest.raises(RowError) as caught:
        unpack(PackedTree.from_dict(document | change))
    assert str(caught.value).startswith(message)
