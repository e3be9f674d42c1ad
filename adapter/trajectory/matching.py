"""Matching under policy ``template``, as slime does it. Pure: the tree is read, the answer is a frozen plan.

A message matches a node by its role and by ``==``; ids play no part. Of several equal children the first counts.

**Rewrite-merge.** A client may replay the newest reply slightly changed. Its message then matches nothing, and
mounting it as a sibling would leave the reply as it was sampled behind as a dead end that still trains. So the plan
lets the client's message take the place of the generated one where no doubt is possible: at the mount point there is
exactly one assistant child, it is a generated leaf, and what would be lost is shorter than the fork threshold. A
threshold of 0 switches this off.
"""

from __future__ import annotations

from adapter.trajectory.forest import Forest
from adapter.trajectory.heads import Head
from adapter.trajectory.interrupted import find_adoption
from adapter.trajectory.node import ROOT_ROLE, Node
from adapter.trajectory.plan import OpenEnded, Plan, Recut
from adapter.trajectory.walk import Request
from adapter.types import Message


def match_by_template(
    forest: Forest,
    request: Request,
    head: Head,
    fork_threshold_tokens: int,
    recut: Recut | None = None,
    continues: OpenEnded | None = None,
) -> Plan:
    """Walk down from the root of ``head`` as far as the messages lead. Tools and options are no part of this policy's heads."""
    root = forest.find(head)
    path = [Node(ROOT_ROLE, None) if root is None else root.node]
    passed: list[Node] = []
    matched = 0
    for message in request.messages:
        found = path[-1].way_to(message)
        if not found:
            break
        path += found
        passed += found[:-1]
        matched += 1
    adoption, merge = find_adoption(forest.interrupted, request, head, matched, recut), None
    if adoption is None and matched < len(request.messages) and continues is None:
        merge = _merge_target(path[-1], request.messages[matched], fork_threshold_tokens)
    return Plan(
        tuple(request.messages),
        tuple(path),
        merge,
        forest.turns,
        matched,
        continues=continues is not None,
        head=head,
        passed=tuple(passed),
        adoption=adoption,
        recut=recut,
    )


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
