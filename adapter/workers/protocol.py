"""What the supervisor and its workers say to each other: lines of JSON over the worker's standard input and output.

    supervisor    its Assignment, once; then {"ping": n}; the end of the input means: stop
    worker        {"ready": URL}, once; then {"pong": n}

So a worker whose supervisor is gone, however that came, sees the end of its input and stops by itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.config import Config
from adapter.configuring import load_config


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is started with. ``urls``: where each slot's worker is reached on its own; ``triton``: HOST:PORT of each
    engine; ``secret``: what the workers of this start know one another by."""

    slot: int
    triton: tuple[str, ...]
    urls: tuple[str, ...]
    ports: tuple[int, ...]
    """Of each slot's own address, on the configured host."""
    secret: str = field(repr=False)
    config: Config

    def encode(self) -> bytes:
        settings = {
            each.name: _plain(value)
            for each in dataclasses.fields(Config)
            if (value := getattr(self.config, each.name)) is not None
        }
        document = {**dataclasses.asdict(dataclasses.replace(self, config=Config())), "config": settings}
        return json.dumps(document).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Assignment:
        """Raises: ConfigError, ValueError."""
        document = json.loads(line)
        return cls(
            slot=document["slot"],
            triton=tuple(document["triton"]),
            urls=tuple(document["urls"]),
            ports=tuple(document["ports"]),
            secret=document["secret"],
            config=load_config(document["config"], {}),
        )


def message(**members: Any) -> bytes:
    return json.dumps(members).encode() + b"\n"


def read_message(line: bytes) -> Mapping[str, Any]:
    """An empty mapping for a line that is none: a library may print something."""
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
