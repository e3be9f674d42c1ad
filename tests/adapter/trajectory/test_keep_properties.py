"""Policy ``keep`` holds for every client: random conversations, replayed through every way of mangling a history.

The client here knows what is true: which replies it has, under which head, and what it edited. From that alone follows the
whole prompt of every request, and whether it may be a fork:

    prompt == render(what comes before the first known reply) ++ the ids from there on as sampled ++ render(what is new)

Every message has a token of its own, so a token that is trained twice, or lost, shows.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.trajectory import Generation, Head, Plan, Sample, Trajectory, TurnRecord
from adapter.trajectory.likeness import text_of
from adapter.types import HistoryPolicy, Message

ROLE_TOKEN = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
END = 5

MANGLES = ("as it was", "thinking dropped", "trimmed", "rewritten", "blocks", "everything")
REPLIES = ("text", "padded", "thinking", "call", "calls", "blank", "truncated")
EVENTS = ("go on", "go on", "go on", "retry", "edit", "rewind", "tools", "system", "cut", "resume", "new")


@dataclass(frozen=True)
class Step:
    """What happens next: in which thread, how the history is mangled, and what is answered."""

    event: str
    thread: int
    place: int
    mangles: tuple[str, ...]
    handles: tuple[bool, ...]
    reply: str
    reorder: bool


STEPS = st.builds(
    Step,
    event=st.sampled_from(EVENTS),
    thread=st.integers(0, 2),
    place=st.integers(0, 5),
    mangles=st.tuples(*[st.sampled_from(MANGLES)] * 3),
    handles=st.tuples(*[st.booleans()] * 3),
    reply=st.sampled_from(REPLIES),
    reorder=st.booleans(),
)


@dataclass
class Item:
    """One message as it is in truth. ``number`` is the turn that it is the reply of, while the client leaves it alone."""

    message: Message
    token: int
    number: int | None = None
    output: list[int] = field(default_factory=list)

    @property
    def blank(self) -> bool:
        return not self.message["content"].strip() and not self.message.get("tool_calls")


@dataclass
class Thread:
    """A conversation. ``tail`` are the ids from the first known reply on, up to the last; ``opened`` the items before it."""

    head: int
    items: list[Item]

    def known(self) -> list[int]:
        return [place for place, item in enumerate(self.items) if item.number is not None]


class Client:
    """Plays steps, and checks each request and the export at the end."""

    def __init__(self) -> None:
        self.trajectory = Trajectory(policy=HistoryPolicy.KEEP, require_log_probs=True)
        self.threads: list[Thread] = []
        self.tokens = count(100)
        self.numbers = count(1)
        self.committed: list[int] = []
        self.dropped = 0
        self.mounted: set[tuple[int, tuple[int, ...]]] = set()
        """Under which head which conversations are known, as the tokens of their messages."""
        self.blank: set[int] = set()
        """Messages that were answered with nothing to see. Two such answers could not be told apart."""

    def play(self, step: Step) -> None:
        if step.event == "new" or not self.threads:
            self.threads.append(Thread(step.place % 2, [self._item("system"), self._item("user")]))
            self._turn(self.threads[-1], step)
            return
        thread = self.threads[step.thread % len(self.threads)]
        getattr(self, f"_{step.event.replace(' ', '_')}")(thread, step)

    def _go_on(self, thread: Thread, step: Step) -> None:
        self._answer_reply(thread)
        self._turn(thread, step)

    def _retry(self, thread: Thread, step: Step) -> None:
        """The newest request once more; the client goes on from the new reply."""
        if thread.items[-1].number is not None and not thread.items[-1].blank:
            thread.items.pop()
            self._turn(thread, step)

    def _edit(self, thread: Thread, step: Step) -> None:
        places = [place for place in thread.known() if not thread.items[place].blank]
        if places:
            place = places[step.place % len(places)]
            edited = self._item("assistant")
            thread.items[place] = edited
            for later in thread.items[place:]:
                later.number = None
            self._go_on(thread, step)

    def _rewind(self, thread: Thread, step: Step) -> None:
        """Another thread that shares a beginning with this one."""
        places = [place for place, item in enumerate(thread.items) if item.message["role"] != "tool"]
        place = places[1 + step.place % (len(places) - 1)]
        branch = Thread(thread.head, [copy.copy(item) for item in thread.items[: place + 1]])
        self.threads.append(branch)
        self._answer_reply(branch)
        self._turn(branch, step)

    def _tools(self, thread: Thread, step: Step) -> None:
        thread.head = (thread.head + 1 + step.place) % 3
        self._go_on(thread, step)

    def _system(self, thread: Thread, step: Step) -> None:
        thread.items[0] = self._item("system")
        self._go_on(thread, step)

    def _cut(self, thread: Thread, step: Step) -> None:
        self._answer_reply(thread)
        self._interrupt(thread, step)

    def _resume(self, thread: Thread, step: Step) -> None:
        """The client keeps two thirds of a reply that was cut off, and goes on."""
        self._answer_reply(thread)
        number, output = self._interrupt(thread, step)
        part = Item({"role": "assistant", "content": _text(output[:2])}, output[0], number, output[:2])
        self.committed += output[:2]
        self.dropped -= 2
        thread.items += [part, self._item("user")]
        self.mounted.add(self._key(thread, len(thread.items) - 1))
        self._turn(thread, step)

    def _answer_reply(self, thread: Thread) -> None:
        """What an agent adds behind a reply: the results of its calls, else what the user says."""
        last = thread.items[-1].message
        if last["role"] == "assistant":
            calls = len(last.get("tool_calls", ()))
            thread.items += [self._item("tool") for _ in range(calls)] or [self._item("user")]
        elif last["role"] == "tool":
            thread.items.append(self._item("user"))

    def _item(self, role: str) -> Item:
        token = next(self.tokens)
        return Item({"role": role, "content": f"w{token}"}, token)

    def _turn(self, thread: Thread, step: Step) -> None:
        plan, prompt = self._request(thread, step)
        asked = thread.items[-1].token
        reply, output = self._reply("text" if asked in self.blank else step.reply)
        if reply.blank:
            self.blank.add(asked)
        number = next(self.numbers)
        self._commit(plan, prompt, thread, reply.message, output, number)
        reply.number, reply.output = number, output
        self.committed += output
        thread.items.append(reply)
        for end in range(1, len(thread.items) + 1):
            self.mounted.add(self._key(thread, end))

    def _interrupt(self, thread: Thread, step: Step) -> tuple[int, list[int]]:
        plan, prompt = self._request(thread, step)
        output = [next(self.tokens) for _ in range(3)]
        number = next(self.numbers)
        self._commit(plan, prompt, thread, {"role": "assistant", "content": _text(output)}, output, number, cut=True)
        self.dropped += 3
        return number, output

    def _reply(self, kind: str) -> tuple[Item, list[int]]:
        item = self._item("assistant")
        message, word = item.message, item.message["content"]
        if kind == "padded":
            message["content"] = f"\n\n{word} "
        if kind in ("thinking", "call", "blank"):
            message["reasoning_content"] = f"thoughts on {word}\n"
        if kind == "blank":
            message["content"] = "\n"
        if kind in ("call", "calls"):
            message["content"] = " \n" if kind == "call" else word
            arguments = {"path": word, "n": 2**60 + item.token, "deep": {"b": [1, None], "a": 2}}
            call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
            message["tool_calls"] = [copy.deepcopy(call) for _ in range(1 if kind == "call" else 3)]
        output = [item.token] if kind == "truncated" else [item.token, END]
        return item, output

    def _request(self, thread: Thread, step: Step) -> tuple[Plan, list[int]]:
        """Match a mangled request and render what its plan asks for; check it against the truth."""
        sent, refs, items = [], [], []
        replayed = max(thread.known(), default=-1) + 1
        for place, item in enumerate(thread.items):
            mangle = step.mangles[place % 3]
            if self._may_drop(thread, place) and mangle == "everything":
                continue
            named = item.number is not None and step.handles[place % 3]
            sent.append(mangled(item.message, mangle if place < replayed else "as it was"))
            refs.append({item.number} if named else set())
            items.append(item)
        if step.reorder:
            _reorder_results(items, sent, refs)
        plan = self.trajectory.match(sent, head=_head(thread.head), refs=refs, recut=_recut)
        self._check_reason(thread, plan)
        opening = _render(thread.head, items[: len(plan.opening)]) if plan.opening else []
        suffix = _suffix(plan.previous, items[len(items) - len(plan.suffix) :]) if plan.previous else []
        prompt = [*opening, *plan.known_ids().tolist(), *suffix]
        assert prompt == self._expected(thread), (plan.reason, thread)
        return plan, prompt

    def _may_drop(self, thread: Thread, place: int) -> bool:
        """Replies with nothing to see are left out; under another head nothing would tell that they are missing."""
        item = thread.items[place]
        return item.blank and item.number is not None and self._key(thread, place + 1) in self.mounted

    def _expected(self, thread: Thread) -> list[int]:
        known = thread.known()
        if not known:
            return _render(thread.head, thread.items)
        ids = _render(thread.head, thread.items[: known[0]])
        last: Item | None = None
        for place in known:
            if last is not None:
                ids += _between(last.output, thread.items[thread.items.index(last) + 1 : place])
            last = thread.items[place]
            ids += last.output
        assert last is not None
        return ids + _between(last.output, thread.items[known[-1] + 1 :])

    def _check_reason(self, thread: Thread, plan: Plan) -> None:
        replies = [place for place, item in enumerate(thread.items) if item.message["role"] == "assistant"]
        known = thread.known()
        if known and self._key(thread, known[-1] + 1) not in self.mounted:
            assert plan.reason in ("fork:tools", "fork:system")
        elif replies and self._key(thread, replies[-1] + 1) not in self.mounted:
            assert plan.reason == "fork:edit"
        else:
            assert not plan.reason.startswith("fork"), "neither an edit nor another head"
            assert (plan.reason == "new") == (not known)

    def _key(self, thread: Thread, end: int) -> tuple[int, tuple[int, ...]]:
        return thread.head, tuple(item.token for item in thread.items[:end])

    def _commit(
        self,
        plan: Plan,
        prompt: list[int],
        thread: Thread,
        reply: Message,
        output: list[int],
        number: int,
        cut: bool = False,
    ) -> None:
        opening = len(_render(thread.head, thread.items[: len(plan.opening)])) if plan.splice and plan.opening else 0
        told = {"number": number, "opening_tokens": opening}
        record = TurnRecord(prompt, output, [-token / 64 for token in output])
        if cut:
            self.trajectory.record_interrupted(plan, record, reply, **told)
        else:
            self.trajectory.commit(plan, record, reply, **told)

    def check_export(self) -> None:
        made = self.trajectory.export(base_sample=Sample())
        trained: Counter[int] = Counter()
        for sample in made.samples:
            response = sample.tokens[len(sample.tokens) - sample.response_length :]
            trained.update(token for token, mask in zip(response, sample.loss_mask, strict=True) if mask)
            for token, mask, log_prob in zip(response, sample.loss_mask, sample.rollout_log_probs, strict=True):
                assert log_prob == (-token / 64 if mask else 0.0)
        assert trained == Counter(self.committed), "every sampled token trains once"
        assert made.ledger.dropped == ({"interrupted": self.dropped} if self.dropped else {})
        for each in self.trajectory.explain():
            assert each.reused + each.rendered > 0


def mangled(message: Message, how: str) -> Message:
    """What a client makes of a message when it replays it."""
    sent = copy.deepcopy(message)
    if how in ("thinking dropped", "everything"):
        sent.pop("reasoning_content", None)
    if how == "trimmed" and "reasoning_content" in sent:
        sent["reasoning_content"] = sent["reasoning_content"].strip()
    if how in ("trimmed", "everything"):
        sent["content"] = sent["content"].strip()
    if how in ("rewritten", "everything"):
        for call in sent.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            arguments["n"] = int(float(arguments["n"]))
            call["function"]["arguments"] = {key: arguments[key] for key in sorted(arguments)}
    if how == "blocks":
        sent["content"] = [{"type": "text", "text": ""}, {"type": "text", "text": sent["content"]}]
    return sent


def _reorder_results(items: list[Item], *beside: list[Any]) -> None:
    """Turn round every run of tool results between known replies, and what stands beside it."""
    known = [place for place, item in enumerate(items) if item.number is not None] or [0]
    start = known[0]
    while start < known[-1]:
        end = start
        while items[end].message["role"] == "tool":
            end += 1
        for each in (items, *beside):
            each[start:end] = reversed(each[start:end])
        start = end + 1


def _head(number: int) -> Head:
    return Head.of([{"name": f"tool {number}"}] if number else ())


def _text(output: Iterable[int]) -> str:
    return " ".join(f"w{token}" for token in output)


def _message_ids(item: Item) -> list[int]:
    return [ROLE_TOKEN[item.message["role"]], *(item.output or [item.token, END])]


def _render(head: int, items: Iterable[Item]) -> list[int]:
    """A conversation as a whole; a reply of which the output is not known renders to its token."""
    return [10 + head, *(token for item in items for token in _message_ids(item)), ROLE_TOKEN["assistant"]]


def _between(output: list[int], items: Iterable[Item]) -> list[int]:
    """From the end of a reply to the start of the next."""
    close = [] if output[-1] == END else [END]
    return [*close, *(token for item in items for token in _message_ids(item)), ROLE_TOKEN["assistant"]]


def _suffix(previous: Generation, items: Iterable[Item]) -> list[int]:
    return _between(previous.output.tolist(), items)


def _recut(turn: Generation, message: Message) -> int | None:
    words = text_of(message).split()
    return len(words) if _text(turn.output.tolist()).split()[: len(words)] == words else None


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(STEPS, min_size=1, max_size=14))
def test_whatever_the_client_does_to_the_history(steps: list[Step]) -> None:
    client = Client()
    for step in steps:
        client.play(step)
    client.check_export()
