"""What agents' sessions look like, and how many of them there are over time.

Sizes and times are log-normal, fitted to two percentiles of real traffic of coding agents: the gap before a turn has p50 4 s and
p90 37 s, a session has 31 turns in the median, an opening (system prompt, tools, first message) has tens of thousands of tokens, a
reply has p50 458 and p99 8,600 tokens. Scales shrink tokens and gaps for a small machine, not the number of turns. Every draw comes
from a ``random.Random`` that is given, so a run can be repeated.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum

Z = {0.9: 1.2816, 0.99: 2.3263}
"""Quantiles of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Given by its median and one higher percentile; draws above ``most`` are ``most``."""

    p50: float
    high: float
    quantile: float
    most: float = math.inf

    def draw(self, rng: random.Random) -> float:
        sigma = math.log(self.high / self.p50) / Z[self.quantile]
        return min(self.most, rng.lognormvariate(math.log(self.p50), sigma))


GAP_S = LogNormal(4, 37, 0.9, most=600)
TURNS = LogNormal(31, 130, 0.9, most=1000)
OPENING_TOKENS = LogNormal(25_000, 45_000, 0.9, most=90_000)
NEW_TOKENS = LogNormal(600, 4_000, 0.9, most=20_000)
"""What a turn adds: the results of tools."""
OUTPUT_TOKENS = LogNormal(458, 8_600, 0.99, most=32_000)

OUTPUT_SIZES = tuple(2**power for power in range(3, 16))
"""Lengths that the scripted model has replies of, in tokens; a drawn length becomes the nearest in ratio."""
CONTEXT_TOKENS = 120_000
"""Where an agent compacts its history."""
SUB_AGENT, DISCONNECT, RETRY = 0.04, 0.03, 0.02
"""Probabilities per turn: a sub-agent starts; the client goes away in mid-stream and asks again; it asks again although the reply
came whole (its end was lost on the way)."""
SUB_AGENT_TURNS = (2, 6)


class Happening(StrEnum):
    """What is special about a turn."""

    NOTHING = "nothing"
    SUB_AGENT = "sub_agent"
    """Before it a sub-agent works, in a conversation of its own in the same session."""
    DISCONNECT = "disconnect"
    """The connection is reset in mid-stream, then the same request comes again."""
    RETRY = "retry"
    """The same request comes again behind a whole reply."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: seconds before it, tokens that it adds and samples."""

    gap_s: float
    new_tokens: int
    output_tokens: int
    happening: Happening


def output_size(tokens: float) -> int:
    """The one of ``OUTPUT_SIZES`` that is nearest in ratio."""
    return min(OUTPUT_SIZES, key=lambda size: abs(math.log(size / max(1.0, tokens))))


@dataclass(frozen=True, slots=True)
class Draws:
    """One agent's draws. ``scale`` of tokens, ``gap_scale`` of gaps, both in (0, 1]."""

    rng: random.Random
    scale: float
    gap_scale: float

    def turns(self) -> int:
        return max(1, round(TURNS.draw(self.rng)))

    def opening_tokens(self) -> int:
        return max(20, round(OPENING_TOKENS.draw(self.rng) * self.scale))

    def context_tokens(self) -> int:
        return round(CONTEXT_TOKENS * self.scale)

    def sub_agent_turns(self) -> int:
        return self.rng.randint(*SUB_AGENT_TURNS)

    def step(self) -> Step:
        return Step(
            gap_s=GAP_S.draw(self.rng) * self.gap_scale,
            new_tokens=max(4, round(NEW_TOKENS.draw(self.rng) * self.scale)),
            output_tokens=output_size(OUTPUT_TOKENS.draw(self.rng) * self.scale),
            happening=self._happening(),
        )

    def _happening(self) -> Happening:
        where = self.rng.random()
        for happening, share in (
            (Happening.SUB_AGENT, SUB_AGENT),
            (Happening.DISCONNECT, DISCONNECT),
            (Happening.RETRY, RETRY),
        ):
            if where < share:
                return happening
            where -= share
        return Happening.NOTHING


class Load(StrEnum):
    """How many users there are over time."""

    STEADY = "steady"
    """All of them, after a short start."""
    RAMP = "ramp"
    """From one to all over the whole time."""
    SPIKE = "spike"
    """A quarter of them; all of them in the middle fifth."""
    SOAK = "soak"
    """As steady, with a slow start; for long runs that look for growth."""


START = {Load.STEADY: 0.1, Load.SOAK: 0.2}
"""Share of the time in which the users of a load come."""


def users_at(load: Load, share: float, users: int) -> int:
    """Users that there should be once ``share`` (0 to 1) of the time is over; at least one."""
    match load:
        case Load.RAMP:
            wanted = users * share
        case Load.SPIKE:
            wanted = users if 0.4 <= share < 0.6 else users / 4
        case Load.STEADY | Load.SOAK:
            wanted = users * min(1.0, share / START[load])
    return max(1, min(users, math.ceil(wanted)))
