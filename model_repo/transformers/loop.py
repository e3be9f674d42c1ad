"""The generation loop: one thread that owns the model, the batch and every live request.

What comes from outside (new requests, control, the close) is put into the inbox as a call and runs between two steps; a
cancelled request is found by its flag there. So nothing here is locked, and all that happens to a request happens in
one order.

    (guided requests: compile the grammar, in a thread of its own) -> inbox
    inbox: admit, control -> drop the cancelled -> one step of the batch -> tokens to their generations -> ends

When a turn of it breaks, all live requests fail with the error, the batch is built anew and the loop goes on; the
traceback goes to the server's log, and ``restarts`` in the figures counts it. If the batch cannot be built again
either, all later requests fail at once.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import torch

from .batch import RowSampler
from .batches import Batches
from .guided import GuideCompiler, GuideRefused, GuideState
from .model_control import ModelControl
from .slots import Drawn, Slot, Slots

CANCELLED = "cancelled"
STOP = "stop"
"""The finish reasons that are ours to say, the latter where a grammar is over; else they come from ``Generation.add``."""

SHUTTING_DOWN = "the server is shutting down"

BatchMaker = Callable[[RowSampler], Batches]


class Generation(Protocol):
    """``common.generation.Generation``, as far as the loop needs it."""

    request: Any
    cancelled: bool

    def add(self, token: int, log_prob: float, weight_version: int, now: float) -> str | None: ...

    def flush(self, now: float) -> None: ...

    def finish(self, reason: Any, *, cached_tokens: int, weight_version: int) -> None: ...

    def fail(self, message: str, *, cached_tokens: int = 0, weight_version: int) -> None: ...

    def refuse(self, message: str) -> None: ...


class GenerationLoop:
    """A ``common.front.Backend``. ``warn`` takes texts for the server's log."""

    def __init__(
        self,
        slots: Slots,
        make_batch: BatchMaker,
        control: ModelControl,
        warn: Callable[[str], None],
        guides: GuideCompiler | None = None,
    ) -> None:
        """``guides`` is there if requests may have a guide."""
        self._guides = guides
        self._slots = slots
        self._make_batch = make_batch
        self._batch: Batches | None = make_batch(slots)
        self._control = control
        self._warn = warn
        self._broken = ""
        self._closing = False
        self._step_seconds = 0.0
        self._counts = {"steps": 0, "sampled_tokens": 0, "restarts": 0}
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="generation-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End what is live with an error, and the thread."""
        if self._guides is not None:
            self._guides.close()
        self._inbox.put(self._shut_down)
        self._thread.join()

    def submit(self, generation: Any) -> None:
        guide = generation.request.guide
        if guide is None:
            self._inbox.put(partial(self._admit, generation, None))
        else:
            assert self._guides is not None  # the front refuses guides where there is no guided decoding
            self._guides.compile(guide, partial(self._compiled, generation))

    def cancel(self, generation: Any) -> None:
        """Nothing to do: its flag is seen before the next step."""

    def control(self, call: Any) -> None:
        self._inbox.put(partial(self._perform, call))

    def _run(self) -> None:
        with torch.inference_mode():
            while not self._closing:
                if self._batch is None and not self._broken:
                    self._rebuild()
                try:
                    self._turn()
                except Exception as error:
                    self._give_up_batch(error)

    def _turn(self) -> None:
        self._empty_inbox()
        self._drop_cancelled()
        if len(self._slots):
            self._advance()

    def _empty_inbox(self) -> None:
        """Wait for a call when there is nothing else to do; then run all there are."""
        try:
            while not self._closing:
                self._inbox.get(block=not len(self._slots))()
        except queue.Empty:
            return

    def _compiled(self, generation: Generation, future: Future[GuideState]) -> None:
        """In the compiler's thread."""
        if future.cancelled():
            end = partial(self._announce, generation.fail, SHUTTING_DOWN, weight_version=self._control.weight_version)
        elif isinstance(error := future.exception(), GuideRefused):
            end = partial(generation.refuse, f"guided_decoding_guide: {error}")
        elif error is not None:
            message = f"the grammar could not be compiled: {error}"
            end = partial(self._announce, generation.fail, message, weight_version=self._control.weight_version)
        else:
            end = partial(self._admit, generation, future.result())
        self._inbox.put(end)

    def _admit(self, generation: Generation, guide: GuideState | None) -> None:
        if self._batch is None:
            self._announce(generation.fail, self._broken, weight_version=self._control.weight_version)
            return
        slot = self._slots.open(generation, guide)
        self._batch.add(slot.key, generation.request.prompt_ids.tolist(), generation.request.lora)

    def _perform(self, call: Any) -> None:
        figures = {"live": len(self._slots)} | self._counts | (self._batch.figures() if self._batch else {})
        try:
            self._control.perform(call, figures, self._batch)
        except Exception as error:
            call.fail(f"{call.control.op} broke: {error}")
            raise

    def _shut_down(self) -> None:
        self._closing = True
        for slot in self._slots.all():
            self._fail(slot, SHUTTING_DOWN)

    def _drop_cancelled(self) -> None:
        for slot in self._slots.all():
            if slot.generation.cancelled:
                self._end(slot, CANCELLED)

    def _advance(self) -> None:
        assert self._batch is not None  # requests are live only while there is one
        began = time.monotonic()
        self._batch.step()
        now = time.monotonic()
        self._step_seconds = now - began
        self._counts["steps"] += 1
        for drawn in self._slots.take_drawn():
            self._deliver(drawn, now)
        # What would come due during the next step leaves now.
        for slot in self._slots.all():
            slot.generation.flush(now + self._step_seconds)

    def _deliver(self, drawn: Drawn, now: float) -> None:
        slot = drawn.slot
        if not math.isfinite(drawn.log_prob):
            self._fail(slot, "the model's logits are not finite")
            return
        self._counts["sampled_tokens"] += 1
        reason = slot.generation.add(drawn.token, drawn.log_prob, self._control.weight_version, now)
        if reason is not None:
            self._end(slot, reason)
        elif slot.guide is not None and slot.guide.error:
            self._fail(slot, f"guided_decoding_guide: {slot.guide.error}")
        elif slot.is_over:
            self._end(slot, STOP)

    def _end(self, slot: Slot, reason: str) -> None:
        self._leave(slot)
        self._announce(slot.generation.finish, reason, **self._end_facts(slot))

    def _fail(self, slot: Slot, message: str) -> None:
        self._leave(slot)
        self._announce(slot.generation.fail, message, **self._end_facts(slot))

    def _leave(self, slot: Slot) -> None:
        """Free what the request holds; its end is announced afterwards."""
        self._slots.close(slot)
        if self._batch is not None:
            self._batch.remove(slot.key)

    def _end_facts(self, slot: Slot) -> dict[str, int]:
        return {"cached_tokens": slot.cached_tokens or 0, "weight_version": self._control.weight_version}

    def _announce(self, end: Callable[..., None], *args: str, **facts: int) -> None:
        """Tell the client. An engine log that cannot be written is no trouble of the other requests."""
        try:
            end(*args, **facts)
        except OSError:
            self._warn(f"the engine log lacks a request:\n{traceback.format_exc()}")

    def _give_up_batch(self, error: Exception) -> None:
        """Fail what is live. The next batch is built when the error is gone: its traceback holds on to this one."""
        self._warn(f"the generation loop broke; {len(self._slots)} requests fail:\n{traceback.format_exc()}")
        self._batch = None
        self._slots.take_drawn()
        for slot in self._slots.all():
            self._fail(slot, f"the generation loop broke: {error}")

    def _rebuild(self) -> None:
        self._counts["restarts"] += 1
        try:
            self._batch = self._make_batch(self._slots)
        except Exception as error:
            self._broken = f"the model is out of order since its generation loop broke: {error}"
            self._warn(f"{self._broken}\n{traceback.format_exc()}")
