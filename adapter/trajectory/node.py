"""What a trajectory is made of, in two layers.

A ``Node`` is one message of the conversation tree. Nodes are what an incoming request is matched against; they hold
no ids. A ``Generation`` is what the engine saw and sampled in one turn; it hangs on the node of the assistant message
that came of it.

A generation does not repeat the ids of the turn before it. It names that turn as its ``base`` and holds what is new:

    prompt_ids = base.ids()[:base_len] ++ given
    ids()      = prompt_ids ++ output

Both layers point downwards or backwards only (a node to its children, a generation to its base), never in a circle,
so a finished session is freed as soon as it is let go of, without waiting for the garbage collector.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.errors import TurnRejected
from adapter.types import Message, Sampling, TurnRecord, VersionSpan
from engine.types import Ids, LogProbs

WIDE = 8
"""Children. A node with more of them finds a message by its hash; up to here comparing is cheaper than hashing."""

HASHED_DEPTH = 32
"""Levels of nesting that go into a message's hash. What lies deeper is told apart by comparison only."""

ROOT_ROLE = ""

_NO_IDS = np.empty(0, np.int32)

_Item = TypeVar("_Item", np.int32, np.float32)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Generation:
    """One turn of the engine. Arrays are read-only and this object's own: ids int32, log probs float32 or None.

    ``base`` is the generated turn before this one on its path, ``base_len`` the length of the common prefix of
    ``base.ids()`` and this turn's prompt.
    """

    turn_index: int
    """Counted from 1 in its session, in the order of commits."""
    base: Generation | None = field(repr=False)
    base_len: int
    prompt_len: int
    """Tokens of the prompt."""
    length: int
    """Tokens of prompt and output."""
    given: Ids
    output: Ids
    log_probs: LogProbs | None
    finish_reason: str
    ill_formed: bool
    untrainable: str | None
    versions: tuple[VersionSpan, ...]
    sampling: Sampling | None
    cached_tokens: int
    started_at: float
    finished_at: float

    @classmethod
    def record(cls, turn: TurnRecord, base: Generation | None, turn_index: int) -> Generation:
        """Take a valid turn into the tree, keeping of its prompt what ``base`` does not have already."""
        base_len = 0 if base is None else shared_prefix(base.ids(), turn.prompt_ids)
        prompt_len = int(turn.prompt_ids.size)
        log_probs = turn.output_log_probs
        return cls(
            turn_index=turn_index,
            base=base,
            base_len=base_len,
            prompt_len=prompt_len,
            length=prompt_len + int(turn.output_ids.size),
            given=_owned(turn.prompt_ids[base_len:]),
            output=_owned(turn.output_ids),
            log_probs=None if log_probs is None or not log_probs.size else _owned(log_probs),
            finish_reason=str(turn.finish_reason),
            ill_formed=turn.ill_formed,
            untrainable=turn.untrainable,
            versions=turn.versions,
            sampling=turn.sampling,
            cached_tokens=turn.cached_tokens,
            started_at=turn.started_at,
            finished_at=turn.finished_at,
        )

    def prompt_ids(self) -> Ids:
        """The prompt as it was sent: int32 [prompt_len], a new array."""
        return self._prefix(self.prompt_len)

    def ids(self) -> Ids:
        """Prompt and output: int32 [length], a new array."""
        return self._prefix(self.length)

    def _prefix(self, end: int) -> Ids:
        parts: list[Ids] = [_NO_IDS]
        turn: Generation | None = self
        while turn is not None and end > 0:
            if end > turn.prompt_len:
                parts.append(turn.output[: end - turn.prompt_len])
            if end > turn.base_len:
                parts.append(turn.given[: end - turn.base_len])
                end = turn.base_len
            turn = turn.base
        parts.reverse()
        return np.concatenate(parts)


def shared_prefix(left: Ids, right: Ids) -> int:
    """Length of the common prefix."""
    size = min(left.size, right.size)
    differing = left[:size] != right[:size]
    first = int(differing.argmax()) if size else 0
    return first if size and differing[first] else size


def check_turn(turn: TurnRecord, *, require_log_probs: bool) -> None:
    """Refuse a record that contradicts itself.

    Raises: TurnRejected, which names the field: ids that are not one-dimensional, log probs that are not as many as
    the output ids (none at all is allowed unless they are required), version spans that do not cover the output end
    to end.
    """
    count = turn.output_ids.size
    log_probs = turn.output_log_probs
    for name, array in (("prompt_ids", turn.prompt_ids), ("output_ids", turn.output_ids)):
        if array.ndim != 1:
            raise TurnRejected(f"{name} has {array.ndim} dimensions, not 1")
    if log_probs is not None and log_probs.size and log_probs.shape != (count,):
        raise TurnRejected(f"output_log_probs has shape {log_probs.shape}, but there are {count} output_ids")
    if require_log_probs and count and (log_probs is None or not log_probs.size):
        raise TurnRejected(f"output_log_probs is missing for {count} output_ids")
    if turn.versions and not _covers(turn.versions, count):
        raise TurnRejected(f"versions do not cover the {count} output_ids end to end: {turn.versions}")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """One message at its place in the conversation, with what followed it in order of arrival.

    ``message`` is None at the root and where a generation produced no message. ``generation`` is set where the
    message is what the engine generated, and None where a client brought it. Messages are shared by reference: nobody
    may change one once it is here.
    """

    role: str
    message: Message | None
    generation: Generation | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list, repr=False)
    _by_hash: dict[int, list[Node]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, message: Message) -> Node:
        """A node for a message that a client brought."""
        return cls(message.get("role", ROOT_ROLE), message)

    @property
    def turn_index(self) -> int | None:
        return None if self.generation is None else self.generation.turn_index

    def find(self, message: Message) -> Node | None:
        """The first child that holds an equal message (``==`` of role and message), if any."""
        role = message.get("role", ROOT_ROLE)
        candidates = self.children if self._by_hash is None else self._by_hash.get(message_hash(message), ())
        for child in candidates:
            if child.role == role and child.message == message:
                return child
        return None

    def add(self, child: Node) -> Node:
        """Append a child; gives the child."""
        self.children.append(child)
        if self._by_hash is not None:
            self._by_hash.setdefault(message_hash(child.message), []).append(child)
        elif len(self.children) > WIDE:
            self._index()
        return child

    def rewrite(self, child: Node, message: Message) -> None:
        """Let ``child`` hold the client's ``message`` in place of what was generated there."""
        child.message = message
        child.generation = None
        if self._by_hash is not None:
            self._index()

    def _index(self) -> None:
        self._by_hash = {}
        for child in self.children:
            self._by_hash.setdefault(message_hash(child.message), []).append(child)


def message_hash(value: Any, depth: int = HASHED_DEPTH) -> int:
    """A hash of JSON-like data, the same for values that are equal by ``==``. Good for this process only."""
    if isinstance(value, str):
        return hash(value)
    if depth and isinstance(value, Mapping):
        return hash(frozenset((key, message_hash(item, depth - 1)) for key, item in value.items()))
    if depth and isinstance(value, list | tuple):
        return hash(tuple(message_hash(item, depth - 1) for item in value))
    # By the rules of hash(), 1, 1.0 and True agree as they do under ``==``.
    return hash(value) if depth and isinstance(value, Hashable) else 0


def _covers(spans: tuple[VersionSpan, ...], count: int) -> bool:
    edges = [0, *(span.end for span in spans)]
    return edges[-1] == count and all(span.start == edge < span.end for span, edge in zip(spans, edges, strict=False))


def _owned(array: NDArray[_Item]) -> NDArray[_Item]:
    """A copy that nobody can write to. A view would keep the whole prompt or message buffer behind it alive."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
