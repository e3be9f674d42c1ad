"""The guide of a turn: ``adapter.guides`` writes it; it is compiled before the engine is asked, so that the client is told of a
schema that cannot be ensured before any header.
"""

from __future__ import annotations

import asyncio
import json

from adapter.errors import BadRequest
from adapter.guides import GuidePlan, asking_field, guide_for
from adapter.prompting import PlannedPrompt, Prompting
from adapter.types import ChatRequest
from engine.grammar import grammar_fault
from engine.types import Guide, GuideKind


async def ensured_guide(
    prompting: Prompting, request: ChatRequest, prompt: PlannedPrompt, offered: frozenset[GuideKind]
) -> Guide | None:
    """What the reply to ``request`` is held to. Raises: BadRequest, naming the field that asks for what cannot be ensured."""
    if asking_field(request) is None:
        return None
    plan = guide_for(request, prompting.parsers, prompting.markers, prompting.tail(prompt.ids), offered)
    if plan is None:
        return None
    await asyncio.to_thread(_check, plan)
    return plan.guide


def _check(plan: GuidePlan) -> None:
    """The client's schemas one by one, so that the right field is named, then the whole."""
    for demand in plan.demands:
        fault = grammar_fault(Guide(GuideKind.JSON_SCHEMA, json.dumps(demand.schema)))
        if fault is not None:
            raise BadRequest(f"this schema cannot be ensured: {fault}", field=demand.field)
    fault = grammar_fault(plan.guide)
    if fault is not None:
        raise BadRequest(f"this cannot be ensured: {fault}", field=plan.field)
