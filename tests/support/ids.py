"""Ids that tests know beforehand."""

from __future__ import annotations


class FixedIds:
    """Every id is its prefix and the letter ``a``, as in the seed's example."""

    def new(self, prefix: str, length: int) -> str:
        return prefix + "a" * length

    def turn_of(self, sid: str, issued: str) -> int | None:
        return None

    def for_turn(self, sid: str, turn: int) -> FixedIds:
        return self
