"""The engine log: an independent witness of what was asked and sampled, one JSON line per ended request.

Written when the model's parameter ``engine_log`` is a path; appended to, one unbuffered write per line, so that several
readers and a crash at any time see whole lines only. The line is written before the final response leaves: who has seen
a reply's end finds its line. Refused requests sampled nothing and have none.

    request_id, session, turn   as the client gave them ("" and 0 if it did not)
    continued                   tokens at the end of prompt_ids that were sampled for the same reply, as the client says
    prompt_ids, output_ids      as the model saw and sampled them, whatever part of the output was sent
    log_probs                   one per output id; float32 values, written exactly
    versions                    [[start, end, weight_version], ...] over the output ids, ``end`` exclusive
    weight_version              in force when the request ended
    finish_reason               stop, length, cancelled, or error
    error                       the error's text; null unless finish_reason is error
    cached_tokens               prompt tokens taken from the KV cache
    max_tokens, sampling        request_output_len, and the object of ``requests.Sampling``'s fields (seed among them)
    guide                       the kind and text of the guide; null where there was none
    lora                        the name of the adapter; empty where there was none
    received_at, slot_freed_at  Unix time in seconds
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .requests import GenerateRequest

Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One ended request. ``error`` is set when ``finish_reason`` is "error"."""

    request: GenerateRequest
    output_ids: list[int]
    log_probs: list[float]
    versions: list[Span]
    weight_version: int
    finish_reason: str
    error: str | None
    cached_tokens: int
    received_at: float
    slot_freed_at: float


class EngineLog:
    """The open log file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, entry: LogEntry) -> None:
        """Raises: OSError, if the whole line could not be written."""
        line = format_entry(entry)
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"the engine log took {written} of {len(line)} bytes: is the disk full?")

    def close(self) -> None:
        os.close(self._file)


def format_entry(entry: LogEntry) -> bytes:
    """The line, with its newline."""
    request = entry.request
    document = {
        "request_id": request.request_id,
        "session": request.session,
        "turn": request.turn,
        "continued": request.continued,
        "prompt_ids": request.prompt_ids.tolist(),
        "output_ids": entry.output_ids,
        "log_probs": entry.log_probs,
        "versions": entry.versions,
        "weight_version": entry.weight_version,
        "finish_reason": entry.finish_reason,
        "error": entry.error,
        "cached_tokens": entry.cached_tokens,
        "max_tokens": request.max_tokens,
        "sampling": asdict(request.sampling),
        "guide": asdict(request.guide) if request.guide else None,
        "lora": request.lora,
        "received_at": entry.received_at,
        "slot_freed_at": entry.slot_freed_at,
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
