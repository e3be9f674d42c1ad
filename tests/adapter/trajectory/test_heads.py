"""Heads: what makes two of them the same."""

from __future__ import annotations

import pytest

from adapter.trajectory import Head, Reason
from adapter.types import Tool


def tool(name: str, **schema: object) -> Tool:
    return {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": {"type": "object", **schema}},
    }


READ, WRITE = tool("read", required=["path"]), tool("write")
REORDERED = {"function": dict(reversed(READ["function"].items())), "type": "function"}


def test_what_does_not_count() -> None:
    known = Head.of([READ, WRITE], "m", {"a": 1, "b": 2})
    assert Head.of([WRITE, REORDERED], "m", {"b": 2, "a": 1}) == known
    assert Head.of() == Head.of([], None, {}) == Head()


def test_a_vocabulary_counts_and_is_saved() -> None:
    known = Head.of([READ], "m", {"a": 1}, "large")
    assert known != Head.of([READ], "m", {"a": 1})
    assert Head.from_dict(known.to_dict()) == known


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Head.of([READ], "m", {"a": 1}), Reason.FORK_TOOLS),
        (Head.of([READ, WRITE, WRITE], "m", {"a": 1}), Reason.FORK_TOOLS),
        (Head.of([tool("read"), WRITE], "m", {"a": 1}), Reason.FORK_TOOLS),
        (Head.of([], "m", {"a": 1}), Reason.FORK_TOOLS),
        (Head.of([READ, WRITE], "n", {"a": 1}), Reason.FORK_MODEL),
        (Head.of([READ], "n", {"a": 2}), Reason.FORK_MODEL),
        (Head.of([READ], "m", {"a": 2}), Reason.FORK_TOOLS),
        (Head.of([READ, WRITE], "m", {"a": True}), Reason.FORK_OPTIONS),
        (Head.of([READ, WRITE], "m"), Reason.FORK_OPTIONS),
        (Head.of([READ, WRITE], "m", {"a": 1}), Reason.FORK_SYSTEM),
    ],
)
def test_what_makes_a_known_conversation_a_new_one(other: Head, reason: Reason) -> None:
    head = Head.of([READ, WRITE], "m", {"a": 1})
    assert head.fork_reason(other) is reason
    assert (head == other) is (reason is Reason.FORK_SYSTEM)


def test_what_orjson_cannot_write_has_a_digest_too() -> None:
    odd = [tool("read", default=10**30), tool("\ud800")]
    assert Head.of(odd) == Head.of(list(reversed(odd)))
    assert Head.of(odd) != Head.of(odd[:1])
    assert Head.of(odd).to_dict()["tools"] == Head.of(odd).tools.hex()
