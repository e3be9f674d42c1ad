"""Rewards of an export: one for the session, one per leaf, one per turn.

A sample's reward is that of its leaf; else the session's; else the sum of the rewards of the turns that train in it.
Every turn trains in one sample at most, so over all samples no turn's reward counts twice. A turn's own reward also
stands in its span, ``metadata["turns"][i]["reward"]``, whatever the sample's reward is.

A leaf is named by its last turn: the ``turn_index`` at the end of its path in ``GET /v1/sessions/SID``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from adapter.errors import BadRequest

REWARD_FIELDS = ("reward", "leaf_rewards", "turn_rewards")


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """A reward is a number, an object of named rewards, or None; a turn's is a number. Keys are turn indexes."""

    reward: Any = None
    leaf_rewards: Mapping[int, Any] = field(default_factory=dict)
    turn_rewards: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, reward: Any) -> RewardSpec:
        """``reward`` itself if it is a spec, else a spec that gives it to every sample."""
        return reward if isinstance(reward, RewardSpec) else cls(reward)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RewardSpec:
        """Read the fields ``reward``, ``leaf_rewards`` and ``turn_rewards`` of a JSON object; others are not looked at.

        Raises: BadRequest, naming the field.
        """
        return cls(
            reward=_reward(document.get("reward"), "reward"),
            leaf_rewards={
                index: _reward(value, f"leaf_rewards.{index}") for index, value in _by_turn(document, "leaf_rewards")
            },
            turn_rewards={
                index: _number(value, f"turn_rewards.{index}") for index, value in _by_turn(document, "turn_rewards")
            },
        )

    def check(self, leaves: Collection[int]) -> None:
        """Raises: BadRequest, if a reward is for a leaf or a turn that a session with these leaves does not have."""
        turn_count = max(leaves, default=0)  # the newest turn has nothing below it
        for index in self.leaf_rewards:
            if index not in leaves:
                known = ", ".join(map(str, sorted(leaves))) or "none"
                raise BadRequest(f"leaf_rewards.{index} names no leaf; leaves: {known}", field=f"leaf_rewards.{index}")
        for index in self.turn_rewards:
            if not 1 <= index <= turn_count:
                raise BadRequest(
                    f"turn_rewards.{index} names no turn; the session has {turn_count}", field=f"turn_rewards.{index}"
                )

    def of_sample(self, leaf: int, trained_turns: Iterable[int]) -> Any:
        """The reward of a sample of ``leaf`` in which ``trained_turns`` train."""
        outcome = self.leaf_rewards.get(leaf, self.reward)
        if outcome is not None:
            return outcome
        found = [self.turn_rewards[index] for index in trained_turns if index in self.turn_rewards]
        return math.fsum(found) if found else None


def _by_turn(document: Mapping[str, Any], name: str) -> list[tuple[int, Any]]:
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise BadRequest(f"{name} must be an object of rewards by turn index", field=name)
    return [(_turn_index(key, name), reward) for key, reward in value.items()]


def _turn_index(key: Any, name: str) -> int:
    text = str(key)
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise BadRequest(f"{name}.{text}: the key must be a turn index, counted from 1", field=f"{name}.{text}")
    return int(text)


def _reward(value: Any, name: str) -> Any:
    if value is None or isinstance(value, Mapping):
        return value
    return _number(value, name, "a finite number, an object or null")


def _number(value: Any, name: str, wanted: str = "a finite number") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRequest(f"{name} must be {wanted}", field=name)
    return value
