"""Was the session recorded as it happened? What the engine logged, what the tree says and what was exported agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.exactness import trained_in, turns_of

Turn = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is worth telling of a session that passed. ``reasons`` and ``labels``: how many turns had each."""

    turns: int
    reasons: Mapping[str, int]
    labels: Mapping[str, int]
    ledger: Mapping[str, Any]

    def __str__(self) -> str:
        counts = [f"{name} x{count}" for name, count in (*self.labels.items(), *self.reasons.items())]
        return f"{self.turns} turns: {', '.join(counts)}"


def judge(
    log: Sequence[Mapping[str, Any]], explained: Sequence[Turn], export: Mapping[str, Any], branches: int = 1
) -> Verdict:
    """``log`` is the engine's of one session, ``explained`` and ``export`` are the server's. The main loop may fall into at most
    ``branches``, one after the other. Raises: AssertionError."""
    main = [turn for turn in explained if turn["label"]["kind"] == "main"]
    found = branches_of(main)
    assert 1 <= len(found) <= branches, [(turn["turn_index"], turn["base_turn"], turn["reason"]) for turn in main]
    for branch in found:
        check_one_row(branch, export)
    check_trained_once(log, export)
    return Verdict(
        turns=len(explained),
        reasons=Counter(turn["reason"] for turn in explained),
        labels=Counter(turn["label"]["kind"] for turn in explained),
        ledger=export["ledger"],
    )


def branches_of(turns: Sequence[Turn]) -> list[list[int]]:
    """Turns that go on from one another, by index; a turn that does not go on from the one before it begins a branch."""
    branches: list[list[int]] = []
    for turn in turns:
        if not branches or turn["base_turn"] != branches[-1][-1]:
            branches.append([])
        branches[-1].append(turn["turn_index"])
    return branches


def check_one_row(branch: Sequence[int], export: Mapping[str, Any]) -> None:
    """One sample trains all turns of the branch."""
    trained = [
        {turn["turn_index"] for turn in sample["metadata"]["turns"] if turn["trained"]} for sample in export["samples"]
    ]
    assert any(set(branch) <= indices for indices in trained), f"branch {branch}, rows {trained}"


def check_trained_once(log: Sequence[Mapping[str, Any]], export: Mapping[str, Any]) -> None:
    """Every token of a reply that came to its end is trained exactly once, with the engine's log prob; of a reply that was cut off,
    what the client replayed is. The ledger knows the rest."""
    for turn in turns_of(log).values():
        places = tuple(turn["prompt_ids"]), tuple(turn["output_ids"])
        rows = [row for sample in export["samples"] for row in trained_in(sample, *places)]
        assert rows == [turn["log_probs"]], f"turn {turn['turn']} is trained {len(rows)} times"
    ledger = export["ledger"]
    assert ledger["sampled"] == ledger["trained"] + sum(ledger["dropped"].values())
    assert ledger["sampled"] == sum(len(entry["output_ids"]) for entry in log)
    assert ledger["trained"] == sum(sum(sample["loss_mask"]) for sample in export["samples"])
    assert set(ledger["dropped"]) <= {"interrupted"}
