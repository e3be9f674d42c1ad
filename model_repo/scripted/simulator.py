"""The scripted model behind the front: slots, a queue, prefill, tokens in time, faults. Everything but the three
``Backend`` methods runs as events of one schedule, so there are no locks, and hundreds of requests cost one thread.

    submit -> waiting (no slot) -> prefill -> token, token, ... -> end, which frees the slot for the first that waits
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from common.control import ControlOp
from common.front import ControlCall
from common.generation import Generation
from common.replies import FinishReason
from common.requests import GenerateRequest, Limits

from .events import Schedule
from .noise import jitter_factor, log_prob
from .prefix_cache import PrefixCache
from .rules import RuleBook
from .script import Fault, FaultKind, Reply, Timing


class Stream:
    """One generation under way. ``ids`` is the whole scripted reply, its end id included; one that is continued begins where the
    request before it ended, and the faults up to there have happened, but for lasting ones."""

    def __init__(self, generation: Generation, reply: Reply) -> None:
        end_ids = generation.request.end_ids
        self.generation = generation
        self.reply = reply
        self.ids = reply.ids + (end_ids[:1] if reply.end else ())
        self.start = generation.request.continued
        fault = reply.fault
        if fault is not None and self.start and fault.after <= self.start:
            fault = replace(fault, after=self.start) if fault.lasting else None
        self.fault: Fault | None = fault
        self.cached_tokens = 0
        self.has_slot = False
        self.flush_due: float | None = None
        """When a flush is scheduled."""

    @property
    def position(self) -> int:
        """How many tokens of the reply have come."""
        return self.start + len(self.generation.output_ids)

    @property
    def length(self) -> int:
        """In tokens; a reply shorter than ``min_tokens`` begins again."""
        return max(len(self.ids), self.start + self.generation.request.sampling.min_tokens) if self.ids else 0

    def faulty_after(self, count: int) -> bool:
        return self.fault is not None and self.fault.after == count

    def next_token(self) -> tuple[int, float]:
        """The token at ``position`` and its log prob."""
        index = self.position % len(self.ids)
        token = self.ids[index]
        if self.reply.log_probs is not None:
            return token, self.reply.log_probs[index]
        return token, log_prob(self.generation.request.sampling.seed, self.position, token)


class Simulator:
    """A ``front.Backend``. ``crash`` ends the process."""

    def __init__(
        self,
        *,
        rules: RuleBook,
        timing: Timing,
        limits: Limits,
        weight_version: int,
        schedule: Schedule,
        crash: Callable[[], None],
    ) -> None:
        self._rules = rules
        self._timing = timing
        self._limits = limits
        self._weight_version = weight_version
        self._path = ""
        self._schedule = schedule
        self._crash = crash
        self._cache = PrefixCache(timing.block_size, timing.kv_cache_tokens)
        self._streams: dict[Generation, Stream] = {}
        self._waiting: deque[Stream] = deque()
        self._slots_taken = 0

    def submit(self, generation: Generation) -> None:
        self._schedule.soon(partial(self._arrive, generation))

    def cancel(self, generation: Generation) -> None:
        self._schedule.soon(partial(self._cancelled, generation))

    def control(self, call: ControlCall) -> None:
        self._schedule.soon(partial(self._control, call))

    def end_all(self, message: str) -> None:
        """Fail what is left. The schedule must have been closed."""
        for stream in list(self._streams.values()):
            del self._streams[stream.generation]
            stream.generation.fail(message, weight_version=self._weight_version)

    def _arrive(self, generation: Generation, now: float) -> None:
        reply = self._rules.answer(generation.request, self._weight_version)
        if reply is None:
            generation.fail("no rule of the script matches the request", weight_version=self._weight_version)
            return
        stream = self._streams[generation] = Stream(generation, reply)
        self._waiting.append(stream)
        self._fill_slots(now)

    def _fill_slots(self, now: float) -> None:
        while self._waiting and (not self._timing.slots or self._slots_taken < self._timing.slots):
            self._start(self._waiting.popleft(), now)

    def _start(self, stream: Stream, now: float) -> None:
        request = stream.generation.request
        self._slots_taken += 1
        stream.has_slot = True
        stream.cached_tokens = self._cache.cached_tokens(_owner(request), request.prompt_ids)
        rate = self._timing.prefill_tokens_per_s
        prefill = (len(request.prompt_ids) - stream.cached_tokens) / rate if rate else 0.0
        self._schedule.at(now + prefill, partial(self._step, stream))

    def _step(self, stream: Stream, now: float) -> None:
        """The time of the next token has come."""
        if stream.generation not in self._streams:
            return
        if stream.generation.cancelled:
            self._finish(stream, FinishReason.CANCELLED, now)
        elif stream.faulty_after(stream.position):
            self._fail(stream, now)
        elif stream.position >= stream.length:
            self._finish(stream, stream.reply.finish_reason, now)
        else:
            self._sample(stream, now)

    def _sample(self, stream: Stream, now: float) -> None:
        generation = stream.generation
        token, value = stream.next_token()
        count = stream.position + 1
        runs_out = count == stream.length and not stream.faulty_after(count)
        last = stream.reply.finish_reason if runs_out else None
        reason = generation.add(token, value, self._weight_version, now, last)
        if reason is not None:
            self._finish(stream, reason, now)
            return
        self._schedule_flush(stream)
        self._schedule.at(now + self._token_time(stream), partial(self._step, stream))

    def _token_time(self, stream: Stream) -> float:
        """Seconds to the next token."""
        seed = stream.generation.request.sampling.seed
        factor = jitter_factor(self._timing.jitter, seed, stream.position)
        own = stream.reply.time_per_output_token_ms
        return (self._timing.time_per_output_token_ms if own is None else own) / 1000 * factor

    def _schedule_flush(self, stream: Stream) -> None:
        due = stream.generation.flush_at
        if due is not None and due != stream.flush_due:
            stream.flush_due = due
            self._schedule.at(due, partial(self._flush, stream))

    def _flush(self, stream: Stream, now: float) -> None:
        if stream.generation in self._streams:
            stream.generation.flush(now)

    def _fail(self, stream: Stream, now: float) -> None:
        """Let the scripted fault happen."""
        fault, stream.fault = stream.fault, None
        assert fault is not None
        match fault.kind:
            case FaultKind.ERROR_BEFORE_FIRST_TOKEN | FaultKind.CUT:
                self._leave(stream)
                stream.generation.fail(
                    fault.message, cached_tokens=stream.cached_tokens, weight_version=self._weight_version
                )
                self._fill_slots(now)
            case FaultKind.STALL:
                if fault.seconds is not None:
                    self._schedule.at(now + fault.seconds, partial(self._step, stream))
            case FaultKind.CRASH:
                self._crash()

    def _cancelled(self, generation: Generation, now: float) -> None:
        stream = self._streams.get(generation)
        if stream is not None:
            self._finish(stream, FinishReason.CANCELLED, now)

    def _finish(self, stream: Stream, reason: FinishReason, now: float) -> None:
        self._leave(stream)
        stream.generation.finish(reason, cached_tokens=stream.cached_tokens, weight_version=self._weight_version)
        self._fill_slots(now)

    def _leave(self, stream: Stream) -> None:
        """Free the slot, or the place in the queue, and keep the ids for reuse."""
        generation = stream.generation
        del self._streams[generation]
        if not stream.has_slot:
            self._waiting.remove(stream)
            return
        self._slots_taken -= 1
        output = np.array(generation.output_ids, dtype=np.int32)
        self._cache.store(_owner(generation.request), np.concatenate([generation.request.prompt_ids, output]))

    def _control(self, call: ControlCall, now: float) -> None:
        match call.control.op:
            case ControlOp.STATS:
                call.answer(self._weight_version, **self._figures())
            case ControlOp.FLUSH:
                self._cache.clear()
                call.answer(self._weight_version)
            case ControlOp.UPDATE_WEIGHTS:
                self._update_weights(call)

    def _update_weights(self, call: ControlCall) -> None:
        """As a real model: not under live requests, and what other weights computed is of no use to the new ones."""
        version, path = call.control.version, call.control.path or ""
        assert version is not None
        if (version, path) != (self._weight_version, self._path):
            if self._streams:
                call.fail(f"update_weights: {len(self._streams)} requests are live; end or cancel them first")
                return
            self._weight_version, self._path = version, path
            self._cache.clear()
        call.answer(self._weight_version, path=self._path)

    def _figures(self) -> dict[str, Any]:
        return {
            "path": self._path,
            "vocab_size": self._limits.vocab_size,
            "max_seq_len": self._limits.max_seq_len,
            "live": len(self._streams),
            "waiting": len(self._waiting),
            "slots": self._timing.slots,
            "cache_tokens": self._cache.tokens,
        }


def _owner(request: GenerateRequest) -> str:
    """Whose part of the prefix cache a request shares: its session's, apart for each adapter."""
    return f"{request.session}\n{request.lora}" if request.session and request.lora else request.session
