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


def setup_logging(form: str, level: str) -> None:
    """Send the project's logs to standard error. ``form`` is ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        document.update(getattr(record, "fields", {}))
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
