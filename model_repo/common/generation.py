"""One accepted request from its first token to its one end.

The model calls ``add`` for each sampled token and obeys what it returns; when it has freed the request's slot it calls
``finish`` (or ``fail``), exactly once. Tokens wait here for the coalescing window: the model calls ``flush`` at
``flush_at`` when no token came in between. All of this is called from one thread; only ``cancelled`` is set from
others.

An end happens in this order: the engine log's line, the id is free again, the final response. So whoever sees the final
response finds the line and may use the id anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .coalesce import Window
from .engine_log import EngineLog, LogEntry, Span
from .replies import FinishReason, Sender, Tokens, final_outputs, token_outputs
from .requests import GenerateRequest
from .stop_words import StopWords

ERROR_REASON = "error"


class Generation:
    """``window`` gives the seconds that tokens wait now; ``on_end`` is called with the generation when its id is free again.
    ``refusal`` begins the message of a request that is refused."""

    def __init__(
        self,
        request: GenerateRequest,
        sender: Sender,
        *,
        window: Callable[[], float],
        log: EngineLog | None,
        on_end: Callable[[Generation], None],
        refusal: str = "",
    ) -> None:
        self.request = request
        self.stop_words = StopWords(request.end_ids, request.stop_words, request.sampling.min_tokens)
        self.output_ids: list[int] = []
        self._log_probs: list[float] = []
        self._versions: list[Span] = []
        self._sender = sender
        self._window = Window(window)
        self._log = log
        self._on_end = on_end
        self._refusal = refusal
        self._received_at = time.time()
        self._cum_log_prob = 0.0
        self._sent = 0
        self._prompt_sent = request.exclude_input_in_output
        self._cancelled = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def cancelled(self) -> bool:
        """The client wants no more tokens: free the slot and ``finish`` with ``FinishReason.CANCELLED``."""
        return self._cancelled

    def mark_cancelled(self) -> None:
        self._cancelled = True

    def client_gone(self) -> bool:
        return self._sender.is_cancelled()

    def add(
        self, token: int, log_prob: float, weight_version: int, now: float, last: FinishReason | None = None
    ) -> FinishReason | None:
        """One sampled token; ``now`` in seconds of a monotonic clock. The reason if the generation ends with it; ``last`` is
        a reason of the model's own."""
        if self._versions and self._versions[-1][2] != weight_version:
            self._send_pending(now)  # a response has one weight version
        self.output_ids.append(token)
        self._log_probs.append(float(np.float32(log_prob)))
        self._extend_versions(weight_version)
        if self.stop_words.feed(token):
            return FinishReason.STOP
        if len(self.output_ids) >= self.request.max_tokens:
            return FinishReason.LENGTH
        if last is None:
            self.flush(now)
        return last

    @property
    def flush_at(self) -> float | None:
        """When ``flush`` has something to do, in the clock of ``now``; None while nothing is pending."""
        if not self.request.streaming or self._sent == len(self.output_ids):
            return None
        return self._window.due_at

    def flush(self, now: float) -> None:
        """Send what is pending, if its time has come."""
        due = self.flush_at
        if due is not None and due <= now:
            self._send_pending(now)

    def finish(self, reason: FinishReason, *, cached_tokens: int, weight_version: int) -> None:
        """The slot is free. What is pending leaves with the final response."""
        try:
            self._end(str(reason), None, cached_tokens, weight_version)
        finally:
            self._sender.send(final_outputs(self._take(weight_version), reason, cached_tokens), final=True)

    def fail(self, message: str, *, cached_tokens: int = 0, weight_version: int) -> None:
        """The slot is free, the generation broke. Tokens that were sampled but not sent leave before the error."""
        if self.request.streaming and self._sent < len(self.output_ids):
            self._sender.send(token_outputs(self._take(weight_version)), final=False)
        try:
            self._end(ERROR_REASON, message, cached_tokens, weight_version)
        finally:
            self._sender.fail(message)

    def refuse(self, message: str) -> None:
        """The request turned out to be invalid before anything was sampled; the log has no line of it."""
        self._on_end(self)
        self._sender.fail(f"{self._refusal}{message}")

    def _end(self, reason: str, error: str | None, cached_tokens: int, weight_version: int) -> None:
        """Raises: OSError, if the log could not be written; the request ends all the same."""
        try:
            if self._log is not None:
                self._log.write(self._log_entry(reason, error, cached_tokens, weight_version))
        finally:
            self._on_end(self)

    def _log_entry(self, reason: str, error: str | None, cached_tokens: int, weight_version: int) -> LogEntry:
        return LogEntry(
            request=self.request,
            output_ids=self.output_ids,
            log_probs=self._log_probs,
            versions=self._versions,
            weight_version=weight_version,
            finish_reason=reason,
            error=error,
            cached_tokens=cached_tokens,
            received_at=self._received_at,
            slot_freed_at=time.time(),
        )

    def _extend_versions(self, weight_version: int) -> None:
        end = len(self.output_ids)
        start = end - 1
        if self._versions and self._versions[-1][2] == weight_version:
            start = self._versions.pop()[0]
        self._versions.append((start, end, weight_version))

    def _send_pending(self, now: float) -> None:
        if self.request.streaming and self._sent < len(self.output_ids):
            self._sender.send(token_outputs(self._take(self._versions[-1][2])), final=False)
            self._window.sent(now)

    def _take(self, weight_version: int) -> Tokens:
        """The pending tokens, which count as sent from here on, the prompt's ids before the first."""
        version = self._versions[-1][2] if self._sent < len(self.output_ids) else weight_version
        new = np.array(self.output_ids[self._sent :], dtype=np.int32)
        log_probs = self._log_probs[self._sent :]
        self._sent = len(self.output_ids)
        self._cum_log_prob += sum(log_probs)
        ids: NDArray[np.int32] = new if self._prompt_sent else np.concatenate([self.request.prompt_ids, new])
        self._prompt_sent = True
        return Tokens(ids, log_probs if self.request.return_log_probs else None, self._cum_log_prob, version)
