"""The judge of exactness: what the engine says that it saw and sampled, against what was exported and what the client knows.

Imports nothing of the project. ``log`` is the engine's log of one session, ``export`` the answer of ``finish``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.simulated_client import Asked

Turns = Mapping[int, Mapping[str, Any]]


def turns_of(log: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The entries of one session by turn; only turns that ended as a whole."""
    return {entry["turn"]: entry for entry in log if entry["finish_reason"] in ("stop", "length")}


def check_prompts(turns: Turns, asked: Sequence[Asked]) -> None:
    """Each prompt starts with the prompt and the output of the turn that it continues; under another head, it holds what came
    after the head."""
    assert turns.keys() == {request.turn for request in asked}
    ancestors = {request.turn: request.ancestor for request in asked}
    for request in asked:
        prompt = turns[request.turn]["prompt_ids"]
        if request.ancestor is not None:
            before = _whole(turns[request.ancestor])
            assert prompt[: len(before)] == before, f"turn {request.turn} does not continue turn {request.ancestor}"
        elif request.relative is not None:
            first = request.relative
            while (ancestor := ancestors[first]) is not None:
                first = ancestor
            kept = _whole(turns[request.relative])[len(turns[first]["prompt_ids"]) :]
            assert _holds(prompt, kept), f"turn {request.turn} does not hold what turn {request.relative} sampled"


def check_training(turns: Turns, export: Mapping[str, Any]) -> None:
    """Every sampled token is trained exactly once, where it was sampled, with the engine's log prob; and nothing else is."""
    samples = export["samples"]
    masks = [[0] * (len(sample["tokens"]) - len(sample["loss_mask"])) + sample["loss_mask"] for sample in samples]
    wanted = Counter((tuple(turn["prompt_ids"]), tuple(turn["output_ids"])) for turn in turns.values())
    for (prompt, output), count in wanted.items():
        start, end = len(prompt), len(prompt) + len(output)
        there = [index for index, sample in enumerate(samples) if tuple(sample["tokens"][:end]) == prompt + output]
        trained = sum(all(masks[index][start:end]) for index in there)
        assert trained == count, f"{count} turns with {len(output)} tokens, trained {trained} times"
    sampled = sum(len(turn["output_ids"]) for turn in turns.values())
    assert sum(map(sum, masks)) == sampled
    assert export["ledger"]["sampled"] == sampled
    assert export["ledger"]["trained"] == sampled
    _check_log_probs(turns, samples, masks)


def _check_log_probs(turns: Turns, samples: Sequence[Mapping[str, Any]], masks: Sequence[Sequence[int]]) -> None:
    for sample, mask in zip(samples, masks, strict=True):
        offset = len(sample["tokens"]) - len(sample["loss_mask"])
        for turn in turns.values():
            start, end = len(turn["prompt_ids"]), len(_whole(turn))
            if sample["tokens"][:end] == _whole(turn) and all(mask[start:end]):
                assert sample["rollout_log_probs"][start - offset : end - offset] == turn["log_probs"]


def leaves(asked: Sequence[Asked]) -> int:
    """How many rows there must be: one for each turn that no other continues."""
    continued = {request.ancestor for request in asked}
    return sum(request.turn not in continued for request in asked)


def _whole(turn: Mapping[str, Any]) -> list[int]:
    return [*turn["prompt_ids"], *turn["output_ids"]]


def _holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))
