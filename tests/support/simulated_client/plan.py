"""Plans: random conversations as lists of steps, for hypothesis, and how an agent carries them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hypothesis import strategies as st

from tests.support.simulated_client.agent import Agent
from tests.support.simulated_client.entries import Said


class Act(StrEnum):
    """What is done to the conversation before it goes on. ``Step.place`` says where."""

    NOTHING = "nothing"
    REMIND = "remind"
    RETRY = "retry"
    GO_BACK = "go back"
    EDIT = "edit"
    TRUNCATE = "truncate"
    CHANGE_TOOLS = "change tools"
    CHANGE_SYSTEM = "change system"


@dataclass(frozen=True, slots=True)
class Step:
    """``reply`` is the number of the reply that is asked for."""

    act: Act
    reply: int
    place: int


PLAIN = (Act.NOTHING, Act.NOTHING, Act.NOTHING, Act.REMIND)


def plans(replies: int, most: int = 8) -> st.SearchStrategy[list[Step]]:
    """Half of the steps only go on."""
    acts = st.sampled_from((*PLAIN * 2, *Act))
    steps = st.builds(Step, acts, st.integers(0, replies - 1), st.integers(0, 7))
    return st.lists(steps, min_size=2, max_size=most)


async def play(agent: Agent, steps: Sequence[Step], words: Callable[[int], str]) -> None:
    """``words(n)`` makes a user ask for reply n."""
    for step in steps:
        if step.act is Act.RETRY and agent.replies:
            await agent.retry()
            continue
        _prepare(agent, step)
        agent.say(words(step.reply), "Mind the gap." if step.act is Act.REMIND else None)
        await agent.ask()


def _prepare(agent: Agent, step: Step) -> None:
    match step.act:
        case Act.GO_BACK if agent.replies:
            agent.go_back(agent.replies[step.place % len(agent.replies)])
        case Act.EDIT if agent.entries:
            agent.edit(step.place % len(agent.entries))
        case Act.TRUNCATE:
            starts = [index for index, entry in enumerate(agent.entries) if isinstance(entry, Said)]
            agent.truncate(starts[step.place % len(starts)] if starts else 0)
        case Act.CHANGE_TOOLS:
            more = {f"tool_{step.place}": {"type": "object", "properties": {}}}
            agent.set_head(agent.head.system, {**agent.head.tools, **more})
        case Act.CHANGE_SYSTEM:
            agent.set_head(f"You are number {step.place}.", agent.head.tools)
