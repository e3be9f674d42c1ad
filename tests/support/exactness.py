"""The judge of exactness: what the engine says that it saw and sampled, against what was exported and what the client knows.

Imports nothing of the project. ``log`` is the engine's log of one session, ``export`` the answer of ``finish``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.simulated_client import Asked

Turns = Mapping[int, Mapping[str, Any]]

Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Where tokens were sampled, and which: prompt ids, output ids. Siblings can share one."""


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
        if request.relative not in (None, request.ancestor):
            first = request.relative
            while (ancestor := ancestors[first]) is not None:
                first = ancestor
            kept = _whole(turns[request.relative])[len(turns[first]["prompt_ids"]) :]
            assert _holds(prompt, kept), f"turn {request.turn} does not hold what turn {request.relative} sampled"


def check_training(turns: Turns, export: Mapping[str, Any]) -> None:
    """Every sampled token is trained exactly once, where it was sampled, with the engine's log prob; and nothing else is."""
    trained: dict[Place, list[list[float]]] = {_place(turn): [] for turn in turns.values()}
    for sample in export["samples"]:
        for (prompt, output), log_probs in trained.items():
            log_probs += trained_in(sample, prompt, output)
    for place, log_probs in trained.items():
        sampled = [turn["log_probs"] for turn in turns.values() if _place(turn) == place]
        assert sorted(log_probs) == sorted(sampled), f"{len(sampled)} turns, trained {len(log_probs)} times"
    tokens = sum(len(turn["output_ids"]) for turn in turns.values())
    assert sum(sum(sample["loss_mask"]) for sample in export["samples"]) == tokens
    assert export["ledger"] == {"sampled": tokens, "trained": tokens, "dropped": {}}


def _place(turn: Mapping[str, Any]) -> Place:
    return tuple(turn["prompt_ids"]), tuple(turn["output_ids"])


def trained_in(sample: Mapping[str, Any], prompt: tuple[int, ...], output: tuple[int, ...]) -> list[list[float]]:
    """The log probs with which a sample trains this output after this prompt; none, if it does not train all of it."""
    if tuple(sample["tokens"][: len(prompt) + len(output)]) != prompt + output:
        return []
    start = len(prompt) - (len(sample["tokens"]) - sample["response_length"])
    span = slice(start, start + len(output))
    return [sample["rollout_log_probs"][span]] if start >= 0 and all(sample["loss_mask"][span]) else []


def leaves(asked: Sequence[Asked]) -> int:
    """How many rows there must be: one for each turn that no other continues."""
    continued = {request.ancestor for request in asked}
    return sum(request.turn not in continued for request in asked)


def _whole(turn: Mapping[str, Any]) -> list[int]:
    return [*turn["prompt_ids"], *turn["output_ids"]]


def _holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))
