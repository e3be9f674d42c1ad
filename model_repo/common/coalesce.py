"""When do pending tokens leave: a time window that joins tokens into messages.

One gRPC message costs a Python client about 85 us whatever it carries. The first token leaves at once, since time to
first token is what a user feels; later ones leave when ``window`` seconds have passed since the last message. Time is
passed in, in seconds of any monotonic clock.
"""

from __future__ import annotations


class Window:
    """The sending rhythm of one reply. ``window`` 0: each token leaves by itself."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._due_at = float("-inf")

    @property
    def due_at(self) -> float:
        """From when on pending tokens may leave."""
        return self._due_at

    def sent(self, now: float) -> None:
        """A message left."""
        self._due_at = now + self._window
