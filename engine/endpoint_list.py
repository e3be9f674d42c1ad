"""Which endpoints there are: named once, or in a file that is read again and again.

The file has a ``HOST:PORT`` a line; what follows a ``#`` is a comment. A file that cannot be read or has a mistake in it changes
nothing: the endpoints stay as they were, and the reason is logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from engine.errors import EndpointListError

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
"""A name, an IPv4 address, or an IPv6 address in brackets, and a port."""


def checked_addresses(addresses: Iterable[str], source: str) -> tuple[str, ...]:
    """In order, each once. Raises: EndpointListError, if there is none or one is not ``HOST:PORT``."""
    found = tuple(dict.fromkeys(addresses))
    for address in found:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[1]) < 65536:
            raise EndpointListError(f"{source} has {address!r}, which is not HOST:PORT")
    if not found:
        raise EndpointListError(f"{source} names no endpoint; one HOST:PORT is needed at least")
    return found


def read_endpoints(path: Path) -> tuple[str, ...]:
    """The addresses in the file. Raises: EndpointListError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EndpointListError(f"cannot read the endpoints from {path}: {error}") from error
    entries = (line.partition("#")[0].strip() for line in lines)
    return checked_addresses((entry for entry in entries if entry), str(path))
