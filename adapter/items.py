"""The items of a conversation, shared by the responses that go on from one another.

Every list of items is what comes before it and a JSON array of more, so a conversation is held once however long it gets. Its
digest is of the items alone, wherever the arrays begin: the same items have the same digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from adapter.jsontext import dump_json, load_exact

Item = dict[str, Any]

NOTHING = b""
"""The digest of no items."""


@dataclass(slots=True, eq=False)
class Items:
    """Those of ``before``, then those of ``text``, a JSON array. ``digest`` is of all of them."""

    before: Items | None
    text: bytes
    digest: bytes
    users: int = 0
    """Who needs its text: responses, and items that it is before. Kept by ``ItemBytes``."""

    def read(self) -> list[Item]:
        """All items, the first one first."""
        texts: list[bytes] = []
        at: Items | None = self
        while at is not None:
            texts.append(at.text[1:-1])
            at = at.before
        items: list[Item] = load_exact(b"[" + b",".join(filter(None, reversed(texts))) + b"]")
        return items


def followed_by(before: Items | None, items: Iterable[Any]) -> Items:
    """``before`` and ``items`` behind it."""
    return shared(before, items, lambda digest: None)[0]


def shared(
    before: Items | None, items: Iterable[Any], known: Callable[[bytes], Items | None]
) -> tuple[Items, Items | None]:
    """``before`` and ``items`` behind it; what of that is ``known`` by its digest is not held again.

    Gives the known part too, as much of it as there is: None, if nothing behind ``before`` was known.
    """
    digest = NOTHING if before is None else before.digest
    texts: list[bytes] = []
    found, count = None, 0
    for item in items:
        texts.append(dump_json(item))
        digest = xxhash.xxh3_128_digest(digest + texts[-1])
        here = known(digest)
        if here is not None:
            found, count = here, len(texts)
    return Items(before if found is None else found, b"[" + b",".join(texts[count:]) + b"]", digest), found


class ItemBytes:
    """The bytes of all texts that somebody needs, each counted once."""

    def __init__(self) -> None:
        self.size = 0

    def hold(self, items: Items | None) -> None:
        while items is not None:
            items.users += 1
            if items.users > 1:
                return
            self.size += len(items.text)
            items = items.before

    def let_go(self, items: Items | None) -> None:
        while items is not None:
            items.users -= 1
            if items.users > 0:
                return
            self.size -= len(items.text)
            items = items.before
