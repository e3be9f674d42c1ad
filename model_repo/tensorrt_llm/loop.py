"""The generation loop: one thread with an event loop, on which the LLM's answers arrive, and a task for each live request.

    submit -> (wait while weights change) -> LlmEngine.submit -> updates -> Generation.add ... -> one end

A task's end is announced in its callback, so a request ends exactly once, whether its task has returned, broken, been cancelled,
or never run. The LLM has a loop's queue for each request, hence this thread; what takes long (new weights) has another one.

Where the engine's workers are gone, requests to them would wait for ever: ``is_healthy`` is asked once a second. Then all live
requests fail, the engine is loaded anew with the weights in force, and ``restarts`` in the figures counts it.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from .llm_engine import LlmEngine
from .reply import CANCELLED, Reply
from .sampling import RequestRefused
from .weight_control import OutOfOrder, WeightControl

SHUTTING_DOWN = "the server is shutting down"
HEALTH_INTERVAL_S = 1.0

Result = TypeVar("Result")


class GenerationLoop:
    """A ``common.front.Backend``. ``warn`` takes texts for the server's log."""

    def __init__(
        self,
        engine: LlmEngine,
        control: WeightControl,
        warn: Callable[[str], None],
        health_interval_s: float = HEALTH_INTERVAL_S,
    ) -> None:
        self._engine = engine
        self._control = control
        self._warn = warn
        self._health_interval_s = health_interval_s
        self._loop = asyncio.new_event_loop()
        self._usable = asyncio.Event()
        self._usable.set()
        self._live: dict[int, Reply] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._broken = ""
        self._closing = False
        self._counts = {"sampled_tokens": 0, "restarts": 0}
        self._thread = threading.Thread(target=self._run, name="generation-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End what is live with an error, then the thread and the engine."""
        self._loop.call_soon_threadsafe(self._shut_down)
        self._thread.join()
        self._engine.close()

    def submit(self, generation: Any) -> None:
        self._loop.call_soon_threadsafe(self._admit, generation)

    def cancel(self, generation: Any) -> None:
        self._loop.call_soon_threadsafe(self._cancel, generation)

    def control(self, call: Any) -> None:
        self._loop.call_soon_threadsafe(self._perform, call)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._chore(self._watch())
        self._loop.run_forever()
        self._loop.run_until_complete(self._finish_chores())
        self._loop.close()

    def _admit(self, generation: Any) -> None:
        reply = Reply(generation, self._loop, self._control.weight_version)
        if self._closing or self._broken:
            self._announce(reply, generation.fail, SHUTTING_DOWN if self._closing else self._broken)
            return
        self._live[id(generation)] = reply
        reply.task = self._loop.create_task(self._sample(reply))
        reply.task.add_done_callback(lambda task: self._ended(reply, task))
        if generation.cancelled:
            reply.task.cancel()

    def _cancel(self, generation: Any) -> None:
        reply = self._live.get(id(generation))
        if reply is not None and reply.task is not None:
            reply.task.cancel()

    async def _sample(self, reply: Reply) -> str:
        await self._usable.wait()
        if self._broken:
            raise OutOfOrder(self._broken)
        return await reply.run(self._engine, self._control.weight_version)

    def _ended(self, reply: Reply, task: asyncio.Task[str]) -> None:
        generation = reply.generation
        self._live.pop(id(generation), None)
        self._counts["sampled_tokens"] += len(generation.output_ids)
        try:
            reply.leave()
        except Exception:
            self._warn(f"a request could not be aborted:\n{traceback.format_exc()}")
        if task.cancelled():
            end, what = (generation.fail, reply.failure) if reply.failure else (generation.finish, CANCELLED)
            self._announce(reply, end, what)
        elif (error := task.exception()) is None:
            self._announce(reply, generation.finish, task.result())
        elif isinstance(error, RequestRefused):
            generation.refuse(str(error))
        else:
            self._announce(reply, generation.fail, f"the engine failed: {error}")

    def _announce(self, reply: Reply, end: Callable[..., None], what: str) -> None:
        """Tell the client. An engine log that cannot be written is no trouble of the other requests."""
        try:
            end(what, cached_tokens=reply.cached_tokens, weight_version=reply.weight_version)
        except OSError:
            self._warn(f"the engine log lacks a request:\n{traceback.format_exc()}")

    def _perform(self, call: Any) -> None:
        figures = {"live": len(self._live)} | self._counts | self._facts()
        is_busy = self._closing or not self._usable.is_set()
        if is_busy and call.control.op != "stats":
            call.fail(f"{call.control.op}: {SHUTTING_DOWN if self._closing else 'the weights are changing'}")
        elif not self._control.answers_at_once(call, figures, is_broken=bool(self._broken)):
            self._usable.clear()
            self._chore(self._change(call))

    def _facts(self) -> dict[str, Any]:
        features = self._engine.features
        update = "in_place" if self._engine.updates_in_place else "reload"
        return {"tensorrt_llm": features.version, "weight_update": update, "penalties": features.penalties}

    async def _change(self, call: Any) -> None:
        """Answered only when the engine is there for the next request."""
        answer = await self._apart(lambda: self._control.perform(call))
        if answer is None:
            call.fail(f"{call.control.op}: {self._broken}")
        else:
            answer()

    async def _apart(self, work: Callable[[], Result]) -> Result | None:
        """``work`` in another thread, while no request goes to the engine; None if the engine is out of order since."""
        self._usable.clear()
        try:
            result = await asyncio.to_thread(work)
        except OutOfOrder as error:
            self._broken = str(error)
            self._warn(self._broken)
            return None
        finally:
            self._usable.set()
        self._broken = ""
        return result

    async def _watch(self) -> None:
        while not self._closing:
            await asyncio.sleep(self._health_interval_s)
            if self._usable.is_set() and not self._broken and not self._engine.is_healthy():
                await self._restart()

    async def _restart(self) -> None:
        self._warn(f"the engine's workers are gone; {len(self._live)} requests fail, the engine is loaded anew")
        self._fail_all("the engine's workers are gone; it is being loaded anew")
        self._counts["restarts"] += 1
        await self._apart(self._control.restore)

    def _fail_all(self, why: str) -> None:
        for reply in self._live.values():
            reply.failure = why
            if reply.task is not None:
                reply.task.cancel()

    def _shut_down(self) -> None:
        self._closing = True
        self._fail_all(SHUTTING_DOWN)
        self._loop.call_soon(self._loop.stop)

    def _chore(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _finish_chores(self) -> None:
        """Whatever has begun to change the engine comes to its end; the watch is ended."""
        replies = [reply.task for reply in self._live.values() if reply.task is not None]
        for chore in self._chores:
            if self._usable.is_set():
                chore.cancel()
        await asyncio.gather(*self._chores, *replies, return_exceptions=True)
        await asyncio.sleep(0)  # the callbacks that announce the ends
        await self._loop.shutdown_default_executor()
