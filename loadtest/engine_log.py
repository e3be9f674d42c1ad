"""What an engine logged, read session by session. Nothing here needs more than a GPU host has, see ``loadtest.gpu_check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson


class EngineLog:
    """A model's log by session; only places in the file are kept, since prompts are long."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._places: dict[str, list[int]] = {}
        with file.open("rb") as lines:
            place = 0
            for line in lines:
                self._places.setdefault(orjson.loads(line)["session"], []).append(place)
                place += len(line)

    def of(self, sid: str) -> list[dict[str, Any]]:
        found = []
        with self._file.open("rb") as lines:
            for place in self._places.get(sid, ()):
                lines.seek(place)
                found.append(json.loads(lines.readline()))
        return found
