"""Structured logs: every line is an event with fields (``sid``, ``turn``, ...), as text or as one JSON object."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import orjson

ROOT = "rollserve"


def event(logger: logging.Logger, level: int, name: str, **fields: Any) -> None:
    """Log the event ``name``. Fields are plain JSON values."""
    logger.log(level, name, extra={"fields": fields})


def setup_logging(form: str, level: str, worker: int | None = None) -> None:
    """Send the project's logs to standard error. ``form`` is ``text`` or ``json``; ``worker`` is in every line of a worker's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(worker) if form == "json" else _TextFormatter(worker))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


class _Formatter(logging.Formatter):
    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._worker,
        }
        document.update(getattr(record, "fields", {}))
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


class _TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(
            f" {name}={value}" for name, value in {**self._worker, **getattr(record, "fields", {})}.items()
        )
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
