"""A session's samples, once its turns have ended or as it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from adapter.session import Session
from adapter.session_bodies import FinishRequest
from adapter.trajectory import Export, ExportFilters, Ledger, Sample, VersionOf

Render = Callable[[Session, Export], bytes]
"""The answer to ``finish``."""


@dataclass(frozen=True, slots=True)
class Exporting:
    """``decode`` turns the ids of a sample's response into text, by the name of their model; ``weight_version`` gives what that
    model's engine has, to filter by staleness."""

    decode: Callable[[str, list[int]], str]
    weight_version: VersionOf
    grace_s: float

    async def ended(self, session: Session, request: FinishRequest, render: Render) -> tuple[bytes, Ledger]:
        """Once no turn runs any more: turns in flight get ``grace_s`` to end. Gives the answer and what is in it."""
        if session.in_flight:
            await asyncio.wait(session.in_flight, timeout=self.grace_s)
        await cancel(session.in_flight)

        def export() -> tuple[bytes, Ledger]:
            made = self.now(session, request)
            return render(session, made), made.ledger

        # Long sessions take tens of milliseconds; nothing else touches a session that is being finished.
        return await asyncio.to_thread(export)

    def now(self, session: Session, request: FinishRequest) -> Export:
        """As it stands."""
        base = Sample(index=request.index, group_index=request.group_index, prompt=request.prompt, label=request.label)
        return session.trajectory.export(
            base_sample=base,
            reward=request.rewards,
            filters=self._filters(session, request),
            extra_metadata={**session.settings.metadata, **request.metadata, "sid": session.sid},
            max_sample_tokens=request.max_sample_tokens,
            decode=self.decode,
        )

    def _filters(self, session: Session, request: FinishRequest) -> ExportFilters:
        """Those of the request; how old tokens may be is the session's own where it does not say."""
        filters = request.filters.at(self.weight_version)
        return (
            filters
            if filters.max_staleness is not None
            else replace(filters, max_staleness=session.settings.max_weight_lag)
        )


async def cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel all but this one, until they have ended."""
    current = asyncio.current_task()
    others = [task for task in tasks if task is not current]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
