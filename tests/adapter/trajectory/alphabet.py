"""A small token alphabet in which a trajectory's cases read as one line each.

Messages     ``s10 u20 a30 t40`` are system, user, assistant and tool messages with that word as content. They render to
             ``1 10 5``, ``2 20 5``, ``3 30 5``, ``4 40 5``; the generation prompt is a final ``3``.
Turns        ``messages -> response``. Response ``a30`` samples ``30 5`` and is the message ``a30``. ``P`` is the prompt of
             ``s10 u20``.
             ``messages [ids] -> a30``     the prompt ids are these, whatever the messages render to
             ``messages -> a30 = 30 31``   these ids were sampled, possibly none
             ``messages -> none``          nothing was sampled and there is no message
             ``... !length``               the finish reason
Samples      left of ``|`` the leading prompt; ``[x]`` is trained, a bare ``x`` is context.

Unless a case says otherwise, token ``x`` was sampled with log prob ``-x / 64``, which float32 holds exactly; so a log prob that
strays to another token shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from adapter.trajectory import Export, Sample, Trajectory, TurnRecord
from adapter.types import Message

ROLES = {"s": ("system", 1), "u": ("user", 2), "a": ("assistant", 3), "t": ("tool", 4)}
END, ASSISTANT = 5, 3
P = "1 10 5 2 20 5 3"
REWARD = 1.0

LogProbOf = Callable[[int], float | None]


def token_log_prob(token: int) -> float:
    return -token / 64


def ids(text: str) -> list[int]:
    return [int(word) for word in text.replace("P", P).split()]


def message(word: str) -> Message:
    return {"role": ROLES[word[0]][0], "content": word}


def messages(text: str) -> list[Message]:
    return [message(word) for word in text.split()]


def render(conversation: Iterable[Message]) -> list[int]:
    """The prompt ids of a conversation, generation prompt included."""
    rendered: list[int] = []
    for each in conversation:
        word = each["content"]
        rendered += [ROLES[word[0]][1], int(word[1:]), END]
    return [*rendered, ASSISTANT]


@dataclass(frozen=True)
class ParsedTurn:
    prompt_messages: list[Message]
    prompt_ids: list[int]
    response_message: Message | None
    output_ids: list[int]
    finish_reason: str

    def record(self, log_prob_of: LogProbOf = token_log_prob, **fields: object) -> TurnRecord:
        log_probs = [log_prob_of(token) for token in self.output_ids]
        missing = any(value is None for value in log_probs)
        return TurnRecord(
            self.prompt_ids, self.output_ids, None if missing else log_probs, self.finish_reason, **fields
        )


_TURN = re.compile(
    r"(?P<messages>[^\[\]>!=]+?)\s*(\[(?P<prompt>[^\]]*)\])?\s*->\s*"
    r"(?P<response>\w+)\s*(=(?P<output>[\d ]*))?\s*(!(?P<finish>\w+))?"
)


def turn(text: str) -> ParsedTurn:
    found = _TURN.fullmatch(text.strip())
    assert found, f"not a turn: {text!r}"
    asked = messages(found["messages"])
    word = found["response"]
    honest = [] if word == "none" else [int(word[1:]), END]
    return ParsedTurn(
        prompt_messages=asked,
        prompt_ids=render(asked) if found["prompt"] is None else ids(found["prompt"]),
        response_message=None if word == "none" else message(word),
        output_ids=honest if found["output"] is None else ids(found["output"]),
        finish_reason=found["finish"] or "stop",
    )


def turns(text: str) -> list[ParsedTurn]:
    return [turn(part) for part in text.split(";")]


def record(trajectory: Trajectory, text: str, log_prob_of: LogProbOf = token_log_prob, **fields: object) -> None:
    """Record the turns that ``text`` names, separated by ``;``."""
    for each in turns(text):
        trajectory.record_turn(
            turn=each.record(log_prob_of, **fields),
            prompt_messages=each.prompt_messages,
            response_message=each.response_message,
        )


def recorded(text: str, threshold: int = 1024) -> Trajectory:
    trajectory = Trajectory(threshold)
    record(trajectory, text)
    return trajectory


@dataclass(frozen=True)
class ExpectedSample:
    tokens: list[int]
    prompt_len: int
    loss_mask: list[int]


def expected(text: str) -> ExpectedSample:
    leading, response = text.split("|")
    words = response.replace("[", " [").split()
    prompt = ids(leading)
    return ExpectedSample(
        tokens=prompt + [int(word.strip("[]")) for word in words],
        prompt_len=len(prompt),
        loss_mask=[int(word.startswith("[")) for word in words],
    )


def check_samples(samples: Sequence[Sample], texts: Sequence[str], log_prob_of: LogProbOf = token_log_prob) -> None:
    """The samples are exactly those that ``texts`` show."""
    assert [shown(sample) for sample in samples] == [shown_text(text) for text in texts]
    for sample, text in zip(samples, texts, strict=True):
        want = expected(text)
        assert sample.tokens == want.tokens
        assert len(sample.tokens) - sample.response_length == want.prompt_len
        assert sample.loss_mask == want.loss_mask
        response = sample.tokens[want.prompt_len :]
        pairs = zip(response, want.loss_mask, strict=True)
        assert sample.rollout_log_probs == [(log_prob_of(token) or 0.0) if trained else 0.0 for token, trained in pairs]


def shown(sample: Sample) -> str:
    """A sample in the notation, for a readable difference."""
    prompt_len = len(sample.tokens) - sample.response_length
    response = zip(sample.tokens[prompt_len:], sample.loss_mask, strict=True)
    words = [f"[{token}]" if trained else str(token) for token, trained in response]
    return " ".join([*map(str, sample.tokens[:prompt_len]), "|", *words])


def shown_text(text: str) -> str:
    return " ".join(text.replace("P", P).replace("[", " [").replace("|", " | ").split())


def export(trajectory: Trajectory, **options: object) -> Export:
    """Export with ``REWARD``, and check what holds for every export."""
    made = trajectory.export(base_sample=Sample(index=7, prompt="hi"), **{"reward": REWARD, **options})
    for sample in made.samples:
        check_sample(sample)
    assert made.ledger.trained == sum(sum(sample.loss_mask) for sample in made.samples)
    assert made.ledger.sampled == made.ledger.trained + sum(made.ledger.dropped.values())
    return made


def check_sample(sample: Sample) -> None:
    """What holds for every sample that is handed out."""
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length <= len(sample.tokens)
    assert 1 in sample.loss_mask
    assert set(sample.loss_mask) <= {0, 1}
    assert sample.reward == REWARD
    assert sample.status == "completed"
    assert all(
        log_prob == 0.0 for log_prob, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if not mask
    )
    trained = [0] * sample.response_length
    for span in sample.metadata["turns"]:
        assert 0 <= span["start"] <= span["end"] <= sample.response_length
        assert span["trained"] == (1 in sample.loss_mask[span["start"] : span["end"]])
        trained[span["start"] : span["end"]] = sample.loss_mask[span["start"] : span["end"]]
    assert trained == sample.loss_mask, "a trained token belongs to no turn"
