"""Whether a load test lost or changed anything: what clients saw, against what was exported, against what the engine logged.

``Seen`` is a reply that a client read to its end; ``export`` the answer of ``finish``; ``log`` the scripted model's lines of that
session. A turn is lost if the client saw it and no sample trains it with the ids and log probs that the engine logged. It is
inexact if it is trained more than once, or if its prompt does not begin with the prompt and the output of the turn that it
continues, or if what the client was given to read is not what the sampled ids say; tokens that are trained and belong to no turn of
the engine count as one inexact turn. A reply that its client left may be trained once or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Entry = Mapping[str, Any]
WHOLE = ("stop", "length")
Says = Callable[[Sequence[int]], str]
"""What sampled ids say, in the form of ``loadtest.speech.spoken``."""


@dataclass(frozen=True, slots=True)
class Seen:
    """``turn`` is the server's number; ``before`` that of the turn which it continues, None at a root; ``said`` what it says, in
    the form of ``loadtest.speech.spoken``."""

    turn: int
    before: int | None
    said: str


@dataclass(slots=True)
class Findings:
    """Counts of one session, or of many. ``notes`` says what is wrong, one line each."""

    sessions: int = 0
    turns: int = 0
    lost: int = 0
    inexact: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.sessions += other.sessions
        self.turns += other.turns
        self.lost += other.lost
        self.inexact += other.inexact
        self.notes += other.notes


def judge(
    sid: str, seen: Sequence[Seen], export: Mapping[str, Any], log: Iterable[Entry], says: Says | None
) -> Findings:
    """One finished session. Without ``says``, what was read is not compared."""
    turns = {entry["turn"]: entry for entry in log if entry["finish_reason"] in WHOLE}
    wanted = {reply.turn: reply for reply in seen}
    found = Findings(sessions=1, turns=len(wanted))
    claimed: list[set[int]] = [set() for _ in export["samples"]]
    for turn, entry in turns.items():
        times = _trained(entry, export["samples"], claimed)
        _count(found, sid, turn, times, expected=turn in wanted)
    for turn, reply in wanted.items():
        if turn not in turns:
            found.lost += 1
            found.notes.append(f"{sid}: turn {turn} was seen, and the engine did not log it")
        elif reply.before is not None and not _continues(turns[turn], turns.get(reply.before)):
            found.inexact += 1
            found.notes.append(f"{sid}: turn {turn} does not continue turn {reply.before}")
        elif says is not None and reply.said != (sampled := says(turns[turn]["output_ids"])):
            found.inexact += 1
            found.notes.append(f"{sid}: turn {turn} was read as {reply.said[-80:]!r}, and sampled as {sampled[-80:]!r}")
    stray = sum(sum(sample["loss_mask"]) for sample in export["samples"]) - sum(map(len, claimed))
    if stray:
        found.inexact += 1
        found.notes.append(f"{sid}: {stray} trained tokens are of no turn")
    return found


def judge_without_log(sid: str, seen: Sequence[Seen], export: Mapping[str, Any]) -> Findings:
    """The same where no engine log is at hand: every seen turn is trained once, and the ledger adds up."""
    spans = [span for sample in export["samples"] for span in sample["metadata"]["turns"] if span["trained"]]
    trained = [span["turn_index"] for span in spans]
    wanted = {reply.turn for reply in seen}
    found = Findings(sessions=1, turns=len(wanted))
    for turn in wanted:
        _count(found, sid, turn, trained.count(turn), expected=True)
    ledger = export["ledger"]
    if ledger["sampled"] != ledger["trained"] + sum(ledger["dropped"].values()):
        found.inexact += 1
        found.notes.append(f"{sid}: the ledger does not add up: {dict(ledger)}")
    return found


def _count(found: Findings, sid: str, turn: int, times: int, *, expected: bool) -> None:
    if times == 0 and expected:
        found.lost += 1
        found.notes.append(f"{sid}: turn {turn} was seen, and no sample trains it as it was sampled")
    elif times > 1:
        found.inexact += 1
        found.notes.append(f"{sid}: turn {turn} is trained {times} times")


def _trained(entry: Entry, samples: Sequence[Mapping[str, Any]], claimed: list[set[int]]) -> int:
    """In how many samples this output is trained behind this prompt, with these log probs."""
    prompt, output = entry["prompt_ids"], entry["output_ids"]
    times = 0
    for sample, places in zip(samples, claimed, strict=True):
        start = len(prompt) - (len(sample["tokens"]) - sample["response_length"])
        span = range(start, start + len(output))
        if start < 0 or places.issuperset(span) or sample["tokens"][: len(prompt) + len(output)] != [*prompt, *output]:
            continue
        within = slice(span.start, span.stop)
        if all(sample["loss_mask"][within]) and sample["rollout_log_probs"][within] == entry["log_probs"]:
            places.update(span)
            times += 1
    return times


def _continues(entry: Entry, before: Entry | None) -> bool:
    if before is None:
        return False
    whole = [*before["prompt_ids"], *before["output_ids"]]
    return bool(entry["prompt_ids"][: len(whole)] == whole)
