"""Pauses and weight updates over all workers, which one of them coordinates.

    pause    ── hold ──► all workers: wait for what runs, or cut it
    weights  ── hold ──► all ──► swap on every endpoint, once ──► adopt ──► all: these weights are in force ──► release ──► all
    resume   ── release ──► all

The worker of slot 0 is the coordinator; the others pass such requests on to it, so there is never a second one. A worker that
starts asks the others for a pause and for the weights in force, and joins. Where nobody tells it the weights, and where it is the
coordinator, whose predecessor may have died in an update, it asks the endpoints: the newest weights that one of them has are in
force, and the others are brought up to them. An update runs to its end though its client leaves. The same one again joins it, or
gets the same answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from adapter.errors import BadRequest, Conflict, NotFound, UpstreamFailed, from_engine
from adapter.holding import COORDINATOR, PEER_MARGIN_S, Holding, NoPeers, Peers
from adapter.logs import event
from adapter.pausing import Hold, Holdable, Pause
from adapter.recorder import Recorder
from engine.errors import EngineError
from engine.updating import UpdateReport, newest_weights, swap_weights
from engine.weights import Weights

logger = logging.getLogger("rollserve.engine")

Answer = dict[str, Any]
"""JSON-ready."""


@dataclass(frozen=True, slots=True)
class Update:
    """New weights for one served model; ``deadline_s`` as in ``pausing.Hold``, which does not make it another update."""

    model: str
    weights: Weights
    deadline_s: float

    @property
    def key(self) -> tuple[str, Weights]:
        return self.model, self.weights


class UpdateRefused(UpstreamFailed):
    """No endpoint took the weights; ``report`` says why each did not."""

    def __init__(self, report: UpdateReport) -> None:
        super().__init__(f"no endpoint took the new weights, and the old ones go on: {report.failures}")
        self.report = report


class EngineControl:
    """``engines`` by the names of the served models. ``pause`` is this worker's own."""

    def __init__(
        self, engines: Mapping[str, Holdable], pause: Pause, recorder: Recorder, peers: Peers | None = None
    ) -> None:
        self._engines = engines
        self._pause = pause
        self._recorder = recorder
        self._peers = peers or NoPeers()
        self._coordinates = self._peers.slot == COORDINATOR
        self._holding = Holding(pause, self._peers)
        self._running: tuple[Update, asyncio.Task[Answer]] | None = None
        self._answers: dict[str, tuple[Weights, Answer]] = {}
        """To the last update of each model."""

    async def join(self) -> None:
        """The pause and the weights that the others have. Before this worker serves, and again when it does: nobody could tell it
        anything in between."""
        before = self._pause.epoch
        told = [each.body for each in await self._peers.tell("state", {}, PEER_MARGIN_S) if each.status == 200]
        for model, weights in {(model, Weights(**each)) for body in told for model, each in body["weights"].items()}:
            await self._require(model, weights)
        holds = [Hold(**body["hold"]) for body in told if body["hold"] is not None]
        left = [hold.epoch for hold in holds if hold.for_update and self._coordinates and self._running is None]
        await self._join_pause([hold for hold in holds if hold.epoch not in left], before, asked=bool(told))
        await asyncio.gather(*(self._look_for_weights(model) for model in self._engines))
        for epoch in left:
            await self._holding.end_left(epoch)

    async def _join_pause(self, holds: Sequence[Hold], before: str | None, *, asked: bool) -> None:
        """The pause that others have, or the end of ours; ``before`` was ours when they were asked. ``asked``: they answered."""
        if before != self._pause.epoch:
            return
        if holds:
            await self._pause.hold(holds[0])
        elif asked:
            self._pause.release(before)

    async def _look_for_weights(self, model: str) -> None:
        """Require what the endpoints have, where nobody else knows of it or an update may have been left half done."""
        if self._engines[model].weights is not None and not self._coordinates:
            return
        newest = await newest_weights(self._engines[model])
        if newest is not None and await self._require(model, newest) and self._coordinates:
            event(logger, logging.INFO, "weights_found", model=model, **asdict(newest))
            await self._peers.tell("require", {"model": model, **asdict(newest)}, PEER_MARGIN_S)

    async def _require(self, model: str, weights: Weights) -> bool:
        """Whether these weights are newer than those that were required of the model; then they are required."""
        engine = self._engines.get(model)
        if engine is None or (engine.weights is not None and engine.weights.version >= weights.version):
            return False
        await engine.adopt(weights)
        return True

    async def close(self) -> None:
        """Stop an update that runs."""
        if self._running is not None:
            self._running[1].cancel()
            with suppress(BaseException):
                await self._running[1]

    async def pause(self, deadline_s: float, lease_s: float) -> Answer:
        """Hold all workers until ``resume``, or for ``lease_s``. Asked for again it begins that time anew. Raises: Conflict."""
        self._require_idle()
        await self._holding.begin(deadline_s, lease_s)
        return self.state()

    async def resume(self) -> Answer:
        """End the pause, if there is one. Raises: Conflict, while an update runs, whose hold ends by itself."""
        self._require_idle()
        await self._holding.end()
        return self.state()

    async def update(self, update: Update) -> Answer:
        """New weights on every endpoint of the model. Raises: AdapterError."""
        if self._running is None or self._running[0].key != update.key:
            self._require_idle()
            answer = self._answer_in_force(update)
            if answer is not None:
                return answer
            task = asyncio.create_task(self._update(update))
            self._running = (update, task)
            task.add_done_callback(self._ended)
        return await asyncio.shield(self._running[1])

    def state(self) -> Answer:
        running = None if self._running is None else self._running[0]
        return {
            "paused": self._pause.epoch is not None,
            "lease_left_s": round(self._pause.lease_left_s, 3),
            "updating": None if running is None else {"model": running.model, **asdict(running.weights)},
            "models": [_model_state(name, engine) for name, engine in self._engines.items()],
        }

    async def obey(self, operation: str, body: Mapping[str, Any]) -> Answer:
        """What the coordinator tells this worker. Raises: AdapterError."""
        match operation:
            case "hold":
                await self._pause.hold(Hold(**body))
            case "renew":
                self._pause.renew(body["epoch"], body["lease_s"])
            case "release":
                self._pause.release(body["epoch"])
            case "adopt":
                self._recorder.weights(**body)
                await self._require(body["model"], Weights(body["version"], body["path"]))
            case "require":
                await self._require(body["model"], Weights(body["version"], body["path"]))
            case "state":
                return self._shared()
            case _:
                raise NotFound(f"there is no operation {operation!r}")
        return {}

    def named(self, model: str | None) -> str:
        """The served model of that name, the first one without a name. Raises: NotFound."""
        name = next(iter(self._engines), "") if model is None else model
        if name not in self._engines:
            known = ", ".join(self._engines) or "none"
            raise NotFound(f"there is no model {name!r} with weights of its own; there are: {known}", field="model")
        return name

    def _shared(self) -> Answer:
        """What a worker that starts has to know."""
        in_force = {
            name: asdict(engine.weights) for name, engine in self._engines.items() if engine.weights is not None
        }
        held = None
        if self._pause.epoch is not None:
            held = asdict(Hold(self._pause.epoch, 0.0, self._pause.lease_left_s, self._pause.for_update))
        return {"hold": held, "weights": in_force}

    def _require_idle(self) -> None:
        if self._running is not None:
            version = self._running[0].weights.version
            raise Conflict(f"an update to version {version} is running; ask again when it is over")

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._running = None
        if not task.cancelled() and task.exception() is not None:
            event(logger, logging.ERROR, "update_failed", message=str(task.exception()))

    def _answer_in_force(self, update: Update) -> Answer | None:
        """The answer, if these weights are in force. Raises: BadRequest, Conflict; Unavailable."""
        engine, wanted = self._engines[update.model], update.weights
        in_force = engine.weights
        if in_force is not None and in_force.version == wanted.version and wanted.path in (None, in_force.path):
            known, answer = self._answers.get(update.model, (None, {}))
            return answer if known == in_force else _answer(replace(update, weights=in_force), _outcomes(engine))
        if in_force is not None and in_force.version == wanted.version:
            raise Conflict(f"version {wanted.version} is in force, with the weights of {in_force.path}", field="path")
        try:
            newest = max(engine.info.weight_version, -1 if in_force is None else in_force.version)
        except EngineError as error:
            raise from_engine(error) from error
        if wanted.version < newest:
            raise BadRequest(f"version {newest} is in force, and versions only rise", field="version")
        return None

    async def _update(self, update: Update) -> Answer:
        """Raises: Conflict; UpdateRefused."""
        began = time.monotonic()
        async with self._holding.while_working(update.deadline_s):
            held_s = time.monotonic() - began
            report = await swap_weights(self._engines[update.model], update.weights)
            if not report.ok:
                raise UpdateRefused(report)
            self._recorder.weights(update.model, update.weights.version, update.weights.path)
            await self._peers.tell("adopt", {"model": update.model, **asdict(update.weights)}, PEER_MARGIN_S)
        outcomes = [asdict(endpoint) for endpoint in report.endpoints]
        answer = _answer(update, outcomes, held_s, time.monotonic() - began)
        self._answers[update.model] = (update.weights, answer)
        event(logger, logging.INFO, "weights_updated", **{key: answer[key] for key in answer if key != "endpoints"})
        return answer


def _answer(update: Update, endpoints: Sequence[Answer], held_s: float = 0.0, paused_s: float = 0.0) -> Answer:
    return {
        "model": update.model,
        "version": update.weights.version,
        "path": update.weights.path,
        "endpoints": list(endpoints),
        "drained_ms": round(1000 * held_s, 1),
        "paused_ms": round(1000 * paused_s, 1),
    }


def _outcomes(engine: Holdable) -> list[Answer]:
    return [
        {
            "address": state.address,
            "weight_version": state.weight_version,
            "error": None if state.healthy else state.last_error,
        }
        for state in engine.endpoints()
    ]


def _model_state(name: str, engine: Holdable) -> Answer:
    states = [{**asdict(state), "breaker": str(state.breaker)} for state in engine.endpoints()]
    known = [state["weight_version"] for state in states if state["healthy"]]
    path = None if engine.weights is None else engine.weights.path
    return {"model": name, "weight_version": min(known, default=None), "path": path, "endpoints": states}
