"""How much of a new request is in the tree already. Pure: the tree is read, the answer is a frozen plan.

A message matches a node by its role and by ``==``; ids play no part. Of several equal children the first counts.

**Rewrite-merge.** A client may replay the newest reply slightly changed. Its message then matches nothing, and
mounting it as a sibling would leave the reply as it was sampled behind as a dead end that still trains. So the plan
lets the client's message take the place of the generated one where no doubt is possible: at the mount point there is
exactly one assistant child, it is a generated leaf, and what would be lost is shorter than the fork threshold. A
threshold of 0 switches this off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adapter.trajectory.generation import Generation
from adapter.trajectory.node import Node
from adapter.types import Message


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a request belongs, as the tree stood at ``revision``."""

    messages: tuple[Message, ...]
    path: tuple[Node, ...]
    """The root, then the node of each matched message."""
    merge: Node | None
    """The generated leaf below the last node of ``path`` whose place the first unmatched message takes, if any."""
    revision: int
    """Turns that the tree held when it was matched."""

    @property
    def mount(self) -> Node:
        """The node that the first unmatched message belongs under."""
        return self.path[-1]

    @property
    def unmatched(self) -> tuple[Message, ...]:
        """Messages that the tree does not have."""
        return self.messages[len(self.path) - 1 :]

    @property
    def base(self) -> Generation | None:
        """The newest generated turn among the matched messages."""
        return next((node.generation for node in reversed(self.path) if node.generation is not None), None)

    @property
    def base_len(self) -> int:
        """Tokens of ``base``: the most that the request's prompt can share with it."""
        return 0 if self.base is None else self.base.length


def match(root: Node, messages: Sequence[Message], fork_threshold_tokens: int, revision: int) -> Plan:
    """Walk down from ``root`` as far as ``messages`` lead."""
    path = [root]
    for message in messages:
        child = path[-1].find(message)
        if child is None:
            break
        path.append(child)
    unmatched = messages[len(path) - 1 :]
    merge = _merge_target(path[-1], unmatched[0], fork_threshold_tokens) if unmatched else None
    return Plan(tuple(messages), tuple(path), merge, revision)


def _merge_target(mount: Node, message: Message, fork_threshold_tokens: int) -> Node | None:
    if message.get("role") != "assistant":
        return None
    candidates = [child for child in mount.children if child.role == "assistant"]
    if len(candidates) != 1:
        return None
    target = candidates[0]
    if target.children or target.generation is None or target.generation.output.size >= fork_threshold_tokens:
        return None
    return target
