"""The alphabet for policy ``keep``: what clients do to a history, and what each turn was recognised as.

On top of ``alphabet``:

Messages     ``a30.31`` is a text of two tokens, ``3 30 31 5``. ``c30`` is a reply that calls tool ``f30``, and otherwise like
             ``a30``. A word may carry changes and a handle: ``a30:pad``, ``c30:keys#2`` (the handle of the second turn started).
Heads        ``T2 | s10 u20 -> a30``: the head that renders to ``92`` before everything else. Without it, nothing does.
Turns        ``-> a30`` commits. ``-x a30.31`` is cut off: the client was given that much and nothing is committed.
Beginnings   ``u20 +a30 -> a30.31``: the reply goes on from ``a30``; what is sampled is the rest.

A played turn is rendered as its plan asks for, so a case also shows that the plan is consistent.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from adapter.trajectory import Generation, Head, Plan, Trajectory, TurnRecord
from adapter.types import HistoryPolicy, Message, ScaffoldKind, ScaffoldSpan
from tests.adapter.trajectory.alphabet import ASSISTANT, END, ROLES, token_log_prob

Change = Callable[[Message], None]


def _think(message: Message) -> None:
    message["reasoning_content"] = f"thoughts on {message['content']}"


def _pad(message: Message) -> None:
    message["content"] = f"\n {message['content']} \n\n"


def _blocks(message: Message) -> None:
    message["content"] = [{"type": "text", "text": message["content"]}]


def _arguments(new: Callable[[dict[str, object]], dict[str, object]]) -> Change:
    def change(message: Message) -> None:
        function = message["tool_calls"][0]["function"]
        function["arguments"] = new(function["arguments"])

    return change


CHANGES: dict[str, Change] = {
    "think": _think,
    "pad": _pad,
    "blocks": _blocks,
    "blank": lambda message: message.update(content=" \n"),
    "void": lambda message: message.update(content=""),
    "edit": lambda message: message.update(content=message["content"] + "!"),
    "keys": _arguments(lambda known: dict(reversed(known.items()))),
    "float": _arguments(lambda known: {**known, "n": 1.0}),
    "double": _arguments(lambda known: {**known, "big": 2**53}),
    "true": _arguments(lambda known: {**known, "n": [True]}),
    "drop": lambda message: message.pop("reasoning_content", None),
    "args": _arguments(lambda known: {**known, "n": 2}),
    "none": _arguments(lambda known: {}),
}


def keep_message(word: str) -> Message:
    """``a30:pad`` as a message; a handle is left out, and so is the sign of a beginning."""
    text, *changes = word.removeprefix("+").partition("#")[0].split(":")
    if text[0] == "c":
        arguments = {"path": text, "n": 1, "big": 2**53 + 1}
        call = {"type": "function", "function": {"name": f"f{text[1:]}", "arguments": arguments}}
        message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    else:
        message = {"role": ROLES[text[0]][0], "content": text}
    for change in changes:
        CHANGES[change](message)
    return message


def keep_ids(word: str) -> list[int]:
    """What a message renders to, its opening token left out."""
    text = re.split("[:#]", word.removeprefix("+"))[0]
    return [int(number) for number in text[1:].split(".")]


def render_words(words: list[str]) -> list[int]:
    """A conversation or the end of one, with the generation prompt."""
    rendered: list[int] = []
    for word in words:
        opener = ROLES["a" if word[0] == "c" else word[0]][1]
        rendered += [opener, *keep_ids(word), END]
    return [*rendered, ASSISTANT]


def render_suffix(plan: Plan, words: list[str]) -> tuple[list[int], tuple[ScaffoldSpan, ...]]:
    """What follows the known ids: an end token if the turn before lacks it, the new messages, the generation prompt."""
    assert plan.previous is not None
    closed = plan.previous.output.size and plan.previous.output[-1] == END
    ids = ([] if closed else [END]) + render_words(words[len(words) - len(plan.suffix) :])
    opener = ScaffoldSpan(len(ids) - 1, len(ids), ScaffoldKind.GENERATION_PROMPT)
    return ids, (opener,) if closed else (ScaffoldSpan(0, 1, ScaffoldKind.CLOSE), opener)


def open_ended(turn: Generation) -> bool:
    return not turn.output.size or bool(turn.output[-1] != END)


def recut(turn: Generation, message: Message) -> int | None:
    """Every number of the text is one token; nothing else is a boundary."""
    if message.get("tool_calls"):
        return 1
    pieces = message["content"].strip()[1:].split(".")
    known = [str(token) for token in turn.ids()[turn.prompt_len - turn.replied :].tolist()]
    return len(pieces) - turn.replied if known[: len(pieces)] == pieces else None


_TURN = re.compile(r"(?:T(?P<head>\d) \| )?(?P<words>[^>]+?) -(?P<how>[>x]) (?P<response>[^ ]+)(?: !(?P<finish>\w+))?")


@dataclass
class Player:
    """Plays turns against one session."""

    trajectory: Trajectory = field(default_factory=lambda: Trajectory(policy=HistoryPolicy.KEEP))
    started: int = 0
    plans: list[Plan] = field(default_factory=list)
    """Of every turn that was played."""
    prompts: list[list[int]] = field(default_factory=list)

    def play(self, text: str) -> None:
        for part in text.split(";"):
            found = _TURN.fullmatch(part.strip())
            assert found, f"not a turn: {part!r}"
            self._turn(found)

    @property
    def reasons(self) -> str:
        return " ".join(str(each.reason) for each in self.trajectory.explain())

    def ask(self, text: str, head: str | None = None) -> Plan:
        """Match only."""
        words = text.split()
        return self.trajectory.match(
            [copy.deepcopy(keep_message(word)) for word in words],
            head=Head.of([{"name": head}] if head else ()),
            refs=[{int(word.partition("#")[2])} if "#" in word else set() for word in words],
            recut=recut,
            continues=open_ended if words[-1].startswith("+") else None,
        )

    def answer(
        self, text: str, plan: Plan, response: str, *, cut: bool = False, finish: str = "stop", head: str = ""
    ) -> None:
        """Render as the plan asks, then commit, or leave it cut off."""
        self.started += 1
        words = text.split()
        opening = ([90 + int(head)] if head else []) + render_words(words[: len(plan.opening)]) if plan.opening else []
        goes_on, begun = plan.goes_on, [] if plan.beginning is None else keep_ids(words[-1])
        history = words[: len(plan.history)]
        suffix, scaffold = render_suffix(plan, history) if plan.previous and not goes_on else ([], ())
        prompt = [*opening, *plan.known_ids().tolist(), *suffix, *begun]
        replied = len(begun) if goes_on is None else goes_on.replied + goes_on.output.size
        output = keep_ids(response)[replied:] + ([] if cut or finish == "length" else [END])
        log_probs = [token_log_prob(token) for token in output]
        record = TurnRecord(prompt, output, log_probs, finish, scaffold=scaffold, replied=replied)
        self.plans.append(plan)
        self.prompts.append(prompt)
        told = {"number": self.started, "opening_tokens": len(opening) if plan.previous and opening else 0}
        if cut:
            self.trajectory.record_interrupted(plan, record, keep_message(response), **told)
        else:
            self.trajectory.commit(plan, record, keep_message(response), **told)

    def _turn(self, found: re.Match[str]) -> None:
        plan = self.ask(found["words"], found["head"])
        self.answer(
            found["words"],
            plan,
            found["response"],
            cut=found["how"] == "x",
            finish=found["finish"] or "stop",
            head=found["head"] or "",
        )


def played(text: str) -> Player:
    player = Player()
    player.play(text)
    return player
