"""Replies that were cut off: finding out that a client replays a part of one.

The part belongs where the whole would have belonged: behind the same messages, under the same head. So it is looked for
among the session's interrupted replies, not in the tree, which does not have them.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter.trajectory.heads import Head
from adapter.trajectory.likeness import is_part, same_history
from adapter.trajectory.plan import Adoption, Interrupted, Recut
from adapter.trajectory.walk import Request


def find_adoption(
    entries: Sequence[Interrupted], request: Request, head: Head, recognised: int, recut: Recut | None
) -> Adoption | None:
    """The interrupted reply that the request goes on from; the latest, if several would do.

    ``recognised`` are the messages up to the last reply that was found in the tree. That one may still be a part of an
    interrupted reply that says the same, if a handle in it says so.
    """
    if recut is None or not entries:
        return None
    for index in range(max(0, recognised - 1), request.replayed):
        for entry in reversed(entries):
            named = entry.turn.number in request.refs_of(index)
            history = entry.plan.history
            if entry.plan.head != head or len(history) != index or not (named or index >= recognised):
                continue
            if is_part(entry.message, request.messages[index]) and same_history(history, request.messages):
                tokens = recut(entry.turn, request.messages[index])
                if tokens is not None and 0 < tokens <= entry.turn.output.size:
                    return Adoption(entry, index, request.messages[index], tokens)
    return None
