"""What a trajectory is made of, in two layers.

A ``Node`` is one message of the conversation tree. Nodes are what an incoming request is matched against; they hold
no ids. A ``Generation`` (``generation``) is what the engine saw and sampled in one turn; it hangs on the node of the
assistant message that came of it.

Both layers point downwards or backwards only (a node to its children, a generation to its base), never in a circle,
so a finished session is freed as soon as it is let go of, without waiting for the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from adapter.trajectory.generation import Generation
from adapter.trajectory.likeness import equal, likeness_hash
from adapter.trajectory.reasons import Finding
from adapter.types import Message

WIDE = 8
"""Children. A node with more of them finds a message by its hash; up to here comparing is cheaper than hashing."""

HASHED_DEPTH = 32
"""Levels of nesting that go into a message's hash. What lies deeper is told apart by comparison only."""

ROOT_ROLE = ""


class Author(StrEnum):
    """Whose words a message is."""

    MODEL = "model"
    """Sampled in this session, at this place or under another head."""
    CLIENT = "client"


class NodeNumbers:
    """Numbers the nodes of one session, in the order in which they came: how a journal refers to them."""

    __slots__ = ("entered", "next")

    def __init__(self) -> None:
        self.next = 0
        self.entered: Callable[[Node, Node | None], None] | None = None
        """Told of every new node and the one above it, while a session is rebuilt."""

    def enter(self, node: Node, above: Node | None) -> None:
        node.numbers, node.number = self, self.next
        self.next += 1
        if self.entered is not None:
            self.entered(node, above)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """One message at its place in the conversation, with what followed it in order of arrival.

    ``message`` is None at the root and where a generation produced no message. ``generation`` is set where the
    message is what the engine generated, and None where a client brought it, or where it is a ``copy``: a reply that was
    generated under another head. Messages are shared by reference: nobody may change one once it is here.
    """

    role: str
    message: Message | None
    generation: Generation | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list, repr=False)
    copy: Generation | None = None
    replayed: Finding | None = None
    """How the message came back when it last differed."""
    continues: bool = False
    """The reply goes on from the message above, which is its beginning: ``message`` is both in one."""
    continued: list[Node] = field(default_factory=list, repr=False)
    """Children that other children go on from."""
    number: int = -1
    numbers: NodeNumbers | None = field(default=None, repr=False)
    _by_hash: dict[int, list[Node]] | None = field(default=None, repr=False)
    _by_likeness: dict[int, list[Node]] | None = field(default=None, repr=False)
    """Made when a wide node is first searched for what is merely alike."""

    @classmethod
    def of(cls, message: Message) -> Node:
        """A node for a message that a client brought."""
        return cls(message.get("role", ROOT_ROLE), message)

    @property
    def turn_index(self) -> int | None:
        return None if self.generation is None else self.generation.turn_index

    @property
    def turn(self) -> Generation | None:
        """The ids of a reply: generated here, or a copy."""
        return self.generation or self.copy

    @property
    def author(self) -> Author:
        return Author.CLIENT if self.turn is None else Author.MODEL

    def find(self, message: Message) -> Node | None:
        """The first child that holds an equal message (``==`` of role and message), if any."""
        return next(self.find_all(message), None)

    def find_all(self, message: Message) -> Iterator[Node]:
        """Every child that holds an equal message, in order of arrival."""
        role = message.get("role", ROOT_ROLE)
        candidates: Iterable[Node] = self.children
        if self._by_hash is not None:
            candidates = self._by_hash.get(message_hash(message), ())
        return (child for child in candidates if child.role == role and equal(child.message, message))

    def way_to(self, message: Message) -> tuple[Node, ...]:
        """The nodes down to the first that holds an equal message: a child, or a reply that goes on from one; empty if none."""
        child = self.find(message)
        if child is not None:
            return (child,)
        return next((way for way in self.continuations() if equal(way[-1].message, message)), ())

    def continuations(self) -> Iterator[tuple[Node, ...]]:
        """The ways down to replies that go on from a child, or in turn from such a reply."""
        for child in self.continued:
            yield from ((child, reply) for reply in child.children if reply.continues)
            yield from ((child, *way) for way in child.continuations())

    def find_alike(self, message: Message) -> Iterable[Node]:
        """Every child that may be ``message`` though it is not equal; ``likeness.differences`` decides."""
        if len(self.children) <= WIDE:
            return self.children
        if self._by_likeness is None:
            self._by_likeness = {}
            for child in self.children:
                self._by_likeness.setdefault(likeness_hash(child.message or {}), []).append(child)
        return self._by_likeness.get(likeness_hash(message), ())

    def of_client(self, message: Message) -> Node:
        """The child that holds an equal message of a client, new if there is none."""
        found = next((child for child in self.find_all(message) if child.turn is None), None)
        return found or self.add(Node.of(message))

    def add(self, child: Node) -> Node:
        """Append a child; gives the child."""
        if self.numbers is not None:
            self.numbers.enter(child, self)
        self.children.append(child)
        if self._by_hash is not None:
            self._by_hash.setdefault(message_hash(child.message), []).append(child)
        elif len(self.children) > WIDE:
            self._index()
        if self._by_likeness is not None:
            self._by_likeness.setdefault(likeness_hash(child.message or {}), []).append(child)
        return child

    def rewrite(self, child: Node, message: Message) -> None:
        """Let ``child`` hold the client's ``message`` in place of what was generated there."""
        child.message = message
        child.generation = None
        self._by_likeness = None
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
