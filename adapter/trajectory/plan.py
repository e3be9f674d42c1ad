"""Where a request belongs and which ids its prompt begins with: a frozen plan, as the tree stood when it was matched.

The prompt that a plan asks for is

    render(opening) ++ known_ids() ++ render_suffix(suffix, after=previous) ++ render_beginning(beginning)

and ``commit`` refuses any other. ``opening`` is rendered in full, generation prompt included; ``known_ids`` come from the
tree; ``suffix`` is what is new. Under policy ``template``, for a new conversation and after ``full_render`` everything is
opening and nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from adapter.trajectory.generation import Generation
from adapter.trajectory.heads import NO_HEAD, Head
from adapter.trajectory.node import Node
from adapter.trajectory.reasons import Finding, Reason
from adapter.types import HistoryPolicy, Message
from engine.types import Ids

Recut = Callable[[Generation, Message], int | None]
"""How many of an interrupted turn's output tokens a replayed message is; None if that is no token boundary."""

OpenEnded = Callable[[Generation], bool]
"""Whether a reply can be gone on from where it is: no end token closed it."""

_NO_IDS = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Interrupted:
    """A reply that was cut off before it was complete: not a turn, unless a client replays a part of it."""

    plan: Plan
    """Where it belongs. It is in no tree yet."""
    turn: Generation
    """What was sampled; turn index 0."""
    message: Message
    """What the client had been given of it."""
    opening_tokens: int
    spans_from: int
    """The prompt's token that scaffold spans were counted from."""
    parent: Node | None = None
    adopted: Node | None = None
    """The node of the part that became a turn, and the one above."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """The client replayed a part of an interrupted reply: that part becomes a turn when the plan is committed."""

    entry: Interrupted
    index: int
    """The message that is the part."""
    message: Message
    tokens: int
    """The part, in output tokens."""


@dataclass(frozen=True, slots=True)
class Splice:
    """The conversation is known under another head: its ids go on behind the new one, as context."""

    nodes: tuple[Node, ...]
    """What is spliced in: where the plan has no base, from the first reply on, else what follows the base. The last is a reply."""
    opened: int
    """Messages before ``nodes`` that must be rendered anew; 0 behind a base."""
    covered: int
    """Messages of the request up to the end of ``nodes``."""
    start: int
    """Where the spliced tokens start in the last node's ids."""

    @property
    def last(self) -> Generation:
        turn = self.nodes[-1].turn
        assert turn is not None
        return turn

    def ids(self) -> Ids:
        """int32, a new array."""
        return self.last.ids()[self.start :]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a request belongs, as the tree stood at ``revision``."""

    messages: tuple[Message, ...]
    path: tuple[Node, ...]
    """The root, then the nodes of the matched messages."""
    merge: Node | None
    """The generated leaf below the last node of ``path`` whose place the first unmatched message takes, if any."""
    revision: int
    """Turns that the tree held when it was matched."""
    matched: int
    """Messages that ``path`` stands for."""
    policy: HistoryPolicy = HistoryPolicy.TEMPLATE
    head: Head = NO_HEAD
    reason: Reason = Reason.NEW
    passed: tuple[Node, ...] = ()
    """Nodes of ``path`` and of the splice that stand for no message of the request: clients leave out what is empty."""
    recognised: tuple[tuple[Node, Finding], ...] = ()
    """Nodes of ``path`` that the request's messages differ from."""
    continues: bool = False
    """The last message is the beginning of the reply that is asked for, in the client's words or as it was sampled."""
    whole: bool = True
    """The prompt is rendered as a whole, whatever of it is known."""
    based: int = 0
    """Messages up to the base's."""
    splice: Splice | None = None
    adoption: Adoption | None = None
    rival: Generation | None = None
    """The turn that the prompt departs from, where it forks."""
    recut: Recut | None = None

    @property
    def mount(self) -> Node:
        """The node that the first unmatched message belongs under."""
        return self.path[-1]

    @property
    def unmatched(self) -> tuple[Message, ...]:
        """Messages that the tree does not have."""
        return self.messages[self.matched :]

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages that the reply answers."""
        return self.messages[:-1] if self.continues else self.messages

    @property
    def base(self) -> Generation | None:
        """The newest turn among the matched messages."""
        return next((node.turn for node in reversed(self.path) if node.turn is not None), None)

    @property
    def base_len(self) -> int:
        """Tokens of ``base``: the most that the request's prompt can share with it."""
        return 0 if self.base is None else self.base.length

    @property
    def sibling(self) -> Generation | None:
        """The latest turn that answered the same messages: its prompt is this one's, ready made."""
        if self.unmatched or self.policy is HistoryPolicy.TEMPLATE:
            return None  # nothing says that the template's options are the same
        return next((node.generation for node in reversed(self.mount.children) if node.generation is not None), None)

    @property
    def previous(self) -> Generation | None:
        """The turn that ``suffix`` follows; None if nothing is known."""
        if self.whole:
            return None
        if self.adoption is not None:
            return self.adoption.entry.turn.cut(self.adoption.tokens)
        return self.base if self.splice is None else self.splice.last

    @property
    def opening(self) -> tuple[Message, ...]:
        """Messages that are rendered in full, with a generation prompt, before what is known."""
        if self.previous is None:
            return self.history
        return self.messages[: self.splice.opened] if self.splice else ()

    @property
    def suffix(self) -> tuple[Message, ...]:
        """Messages that are rendered after what is known."""
        if self.previous is None:
            return ()
        if self.adoption is not None:
            return self.history[self.adoption.index + 1 :]
        return self.history[self.based if self.splice is None else self.splice.covered :]

    @property
    def goes_on(self) -> Generation | None:
        """The sampled reply that the new one goes on from: the prompt ends with it, nothing is rendered behind it."""
        reached = self.based if self.adoption is None else self.adoption.index + 1
        return self.previous if self.continues and self.splice is None and reached == len(self.messages) else None

    @property
    def beginning(self) -> Message | None:
        """The client's own beginning of the reply, if the prompt is to end with one."""
        return self.messages[-1] if self.continues and self.goes_on is None else None

    @property
    def known_tokens(self) -> int:
        """How many ``known_ids`` are, without putting them together: that costs the whole history."""
        previous = self.previous
        if previous is None:
            return 0
        if self.splice is None:
            return previous.length
        return self.base_len + self.splice.last.length - self.splice.start

    def known_ids(self) -> Ids:
        """The ids between opening and suffix: int32, a new array."""
        previous = self.previous
        if previous is None:
            return _NO_IDS
        if self.splice is None:
            return previous.ids()
        return self.splice.ids() if self.base is None else np.concatenate([self.base.ids(), self.splice.ids()])

    def full_render(self) -> Plan:
        """The same for a prompt that is rendered as a whole, because the template cannot be trusted with suffixes."""
        return replace(self, whole=True, splice=None, reason=Reason.FORK_UNVERIFIED_TEMPLATE)
