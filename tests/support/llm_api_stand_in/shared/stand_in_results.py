"""``RequestOutput`` and ``CompletionOutput`` of the stand-in, by ``tensorrt_llm/executor/result.py``.

All of an output is what there is so far; an iteration over a ``RequestOutput`` gives itself after each response.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass, field
from typing import Any


class RequestError(RuntimeError):
    """The engine refused or broke a request."""


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What the worker sends for one request and step."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    cached_tokens: int = 0
    error: str = ""


class RequestOutput:
    """Made in a running event loop, to which its queue belongs."""

    def __init__(self, executor: Any, request_id: int, prompt: list[int], params: Any) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt
        self._outputs = [CompletionOutput(0)]
        self.cached_tokens = 0
        self._params = params
        self._done = False
        self._executor = weakref.ref(executor)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Response] = asyncio.Queue()

    @property
    def outputs(self) -> list[CompletionOutput]:
        return self._outputs

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        executor = self._executor()
        assert executor is not None, "The executor is not set for this result."
        executor.abort_request(self.request_id)

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        self._handle(await self._queue.get())
        return self

    def put(self, response: Response) -> None:
        """From the worker's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, response)

    def _handle(self, response: Response) -> None:
        if response.error:
            raise RequestError(response.error)
        output = self.outputs[0]
        output.token_ids.extend(response.ids)
        output.logprobs.extend(response.logprobs)
        self.cached_tokens = response.cached_tokens
        output.finish_reason = response.finish_reason
        self._done = response.finish_reason is not None
        stops = self._params.stop_token_ids or []
        if response.finish_reason == "stop" and output.token_ids[-1] in stops:
            output.stop_reason = output.token_ids[-1]
            if not self._params.include_stop_str_in_output:
                output.token_ids = output.token_ids[:-1]  # and the log probs stay as they are
