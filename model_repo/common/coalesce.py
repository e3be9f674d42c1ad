"""When do pending tokens leave: a time window that joins tokens into messages.

A message costs a Python client some 100 us whatever it carries, so the window grows with the number of replies that are streamed
at the same time: short while the model is quiet, longer under load, never longer than what a reader may notice. The first token
leaves at once, since time to first token is what a user feels, and so does the end; later ones leave when the window has passed
since the last message. Time is passed in, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coalescing:
    """Seconds: the ``shortest`` window (0: each token leaves by itself), so much ``per_live`` reply, the ``longest``."""

    shortest: float = 0.0
    per_live: float = 0.0
    longest: float = 0.0

    def window(self, live: int) -> float:
        """The window while ``live`` replies are streamed."""
        if self.shortest == 0:
            return 0.0
        return max(self.shortest, min(self.longest, live * self.per_live))


class Window:
    """The sending rhythm of one reply. ``length`` says how long the window is now."""

    def __init__(self, length: Callable[[], float]) -> None:
        self._length = length
        self._due_at = float("-inf")

    @property
    def due_at(self) -> float:
        """From when on pending tokens may leave."""
        return self._due_at

    def sent(self, now: float) -> None:
        """A message left."""
        self._due_at = now + self._length()
