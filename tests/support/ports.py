"""Ports of 127.0.0.1 that are free, for servers whose addresses others must know before they listen."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Distinct ones: all are held until the last is found."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]
