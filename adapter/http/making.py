"""The work of a reply's task: run the turn that was asked for and append what goes on the wire.

``reply.begin`` once the turn is prepared, ``append`` for what the engine's messages made visible, ``commit`` with what makes the
reply complete; an AdapterError that is raised is the answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from urllib.parse import quote

from adapter.errors import AdapterError
from adapter.http.failures import ServerFault
from adapter.jsontext import dump_json
from adapter.logs import event
from adapter.metrics import Stage
from adapter.preparing import TurnServices, prepare_turn
from adapter.protocols.base import WireProtocol
from adapter.records import Answered, ReplyRecord
from adapter.replies import record_of
from adapter.reply import LiveReply
from adapter.sessions import Session
from adapter.turn import Turn, TurnOutcome
from adapter.types import ChatRequest, Label, ReplyEvent
from adapter.watching import CLIENT_GONE, FAULT, INTERRUPTED, TurnWatch

logger = logging.getLogger("rollserve.turn")


class ReplyMaker:
    """Makes a reply that is one turn."""

    def __init__(
        self,
        services: TurnServices,
        session: Session,
        protocol: WireProtocol,
        chat: ChatRequest,
        label: Label,
        headers: Mapping[str, str],
    ) -> None:
        """``headers`` of the request may say which trace its turns belong to."""
        self._services = services
        self._session = session
        self._protocol = protocol
        self._chat = chat
        self._label = label
        self._headers = headers
        self.model = chat.model or services.models.default.name
        self.reply_id = protocol.new_reply_id(services.ids, session.sid)
        self.created = int(time.time())

    async def make(self, reply: LiveReply) -> None:
        """Raises: AdapterError."""
        try:
            await self._make(reply)
        except AdapterError:
            raise
        except Exception as error:
            logger.exception("fault", extra={"fields": {"sid": self._session.sid}})
            raise ServerFault("internal error; the server's log has the details") from error

    async def _make(self, reply: LiveReply) -> None:
        services = self._services
        with self._watched(reply) as (watch,), self._session.turn_in_flight(services.config) as number:
            async with AsyncExitStack() as stack:
                with watch.stage(Stage.QUEUE):
                    await stack.enter_async_context(services.admission.places())
                with watch.stage(Stage.PREPARE):
                    turn = await prepare_turn(services, self._session, number, self._chat, self._label, watch)
                await (self._stream(turn, reply) if self._chat.stream else self._whole(turn, reply))
            log_turn(self._protocol.name, turn)

    @contextmanager
    def _watched(self, reply: LiveReply, count: int = 1) -> Iterator[list[TurnWatch]]:
        """Watches of the ``count`` turns that are made inside, told how they ended."""
        model = self._services.models.find(self._chat.model).name
        watching = self._services.watching
        watches = [watching.turn(self._protocol.name, model, self._headers) for _ in range(count)]
        outcome = FAULT
        try:
            yield watches
        except AdapterError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = CLIENT_GONE if reply.abandoned else INTERRUPTED
            raise
        finally:
            for watch in watches:
                watch.ended(outcome)

    async def _stream(self, turn: Turn, reply: LiveReply) -> None:
        frames = self._protocol.stream(
            self._chat, reply_id=self.reply_id, model=self.model, ids=turn.ids, created=self.created
        )
        reply.begin(debug_headers(turn), keepalive=frames.keepalive(), render_error=frames.error)
        reply.append(frames.start(int(turn.prompt.ids.size)))
        last = end = b""

        def complete(outcome: TurnOutcome, events: list[ReplyEvent]) -> Answered:
            nonlocal last, end
            last, end = frames.events(events), frames.finish(outcome.parsed, outcome.reason, outcome.usage)
            return self._answered(reply, last + end)

        async with aclosing(turn.events(complete)) as batches:
            async for batch in batches:
                reply.append(frames.events(batch) if turn.outcome is None else last)
        reply.commit(end)

    async def _whole(self, turn: Turn, reply: LiveReply) -> None:
        reply.begin(debug_headers(turn))
        body = b""

        def complete(outcome: TurnOutcome, events: list[ReplyEvent]) -> Answered:
            nonlocal body
            made = self._protocol.reply(outcome.parsed, outcome.reason, turn.ids, self._chat)
            rendered = self._protocol.render_body(
                made, reply_id=self.reply_id, model=self.model, usage=outcome.usage, created=self.created
            )
            body = dump_json(rendered)
            return self._answered(reply, body)

        async with aclosing(turn.events(complete)) as batches:
            async for _ in batches:
                pass
        reply.commit(body)

    def _answered(self, reply: LiveReply, end: bytes) -> Answered:
        response = None if reply.on_commit is None else reply.on_commit(end)
        return Answered(self._recorded(reply, end), response)

    def _recorded(self, reply: LiveReply, end: bytes) -> ReplyRecord | None:
        """The reply with its ``end`` as it is recorded, if it is; its delivery is then recorded too. Its turn is at that moment."""
        reply.recorded = True
        recorder, sid = self._session.recorder, self._session.sid
        record = record_of(reply, end) if recorder.keeps else None
        if record is not None:
            number = record.number  # The record holds the wire, which need not stay as long as the reply.
            reply.on_delivery = lambda: recorder.delivered(sid, number)
        return record


def debug_headers(turn: Turn) -> dict[str, str]:
    """Which session and turn this is, how its history was recognised, what pinned values replaced, which fields had no effect, and
    what may have none."""
    headers = {
        "x-rollserve-session": quote(turn.session.sid),
        "x-rollserve-turn": str(turn.number),
        "x-rollserve-match": turn.reason,
    }
    if turn.sampling.overridden:
        headers["x-rollserve-pinned"] = ",".join(turn.sampling.overridden)
    if turn.request.unused_fields:
        headers["x-rollserve-unused-fields"] = quote(",".join(turn.request.unused_fields), safe=",._-[]")
    if turn.warning:
        headers["x-rollserve-warning"] = turn.warning
    return headers


def log_turn(protocol: str, turn: Turn) -> None:
    outcome = turn.outcome
    assert outcome is not None
    event(
        logger, logging.INFO, "turn", sid=turn.session.sid, turn=turn.number, protocol=protocol,
        match=str(turn.reason), input_tokens=outcome.usage.input_tokens,
        cached_tokens=outcome.usage.cached_tokens, output_tokens=outcome.usage.output_tokens,
        finish_reason=str(outcome.reason), **({"warning": turn.warning} if turn.warning else {}),
    )  # fmt: skip
