"""Trajectories by session id: the Python API, in the words of slime's trajectory manager.

    manager = TrajectoryManager()
    manager.record_turn(sid, turn=turn, prompt_messages=messages, response_message=message)
    samples = manager.get_trajectory(sid, base_sample=Sample(index=7), reward=1.0)

Under policy ``keep`` the prompts of a session must go on from one another, as ``Trajectory.match`` plans them.

A session begins with its first turn and ends when it is exported or dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from adapter.trajectory.export import Export, ExportOptions
from adapter.trajectory.ledger import Ledger
from adapter.trajectory.samples import Sample
from adapter.trajectory.tree import FORK_THRESHOLD_TOKENS, PathEntry, Trajectory
from adapter.types import HistoryPolicy, Message, TurnRecord


class TrajectoryManager:
    """Many sessions, each with its own ``Trajectory``."""

    def __init__(
        self,
        fork_threshold_tokens: int | None = FORK_THRESHOLD_TOKENS,
        require_log_probs: bool = False,
        *,
        policy: HistoryPolicy = HistoryPolicy.TEMPLATE,
    ) -> None:
        self._policy = policy
        self._fork_threshold_tokens = fork_threshold_tokens
        self._require_log_probs = require_log_probs
        self._trajectories: dict[str, Trajectory] = {}

    def record_turn(
        self,
        sid: str,
        *,
        turn: TurnRecord,
        prompt_messages: Sequence[Message],
        response_message: Message | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a turn; without prompt messages do nothing. Raises: TurnRejected, and then nothing was changed."""
        if not prompt_messages:
            return
        trajectory = self._trajectories.get(sid) or Trajectory(
            self._fork_threshold_tokens, self._require_log_probs, policy=self._policy
        )
        trajectory.record_turn(
            turn=turn, prompt_messages=prompt_messages, response_message=response_message, metadata=metadata
        )
        self._trajectories[sid] = trajectory

    def get_trajectory(self, sid: str, *, base_sample: Sample, **options: Unpack[ExportOptions]) -> list[Sample]:
        """The session's samples; the session is over. Unknown sessions have none. Raises: LedgerMismatch."""
        return self.export(sid, base_sample=base_sample, **options).samples

    def export(self, sid: str, *, base_sample: Sample, **options: Unpack[ExportOptions]) -> Export:
        """The session's samples and ledger; the session is over. Raises: LedgerMismatch, and then it is not."""
        trajectory = self._trajectories.get(sid)
        if trajectory is None:
            return Export([], Ledger(0, 0, {}))
        made = trajectory.export(base_sample=base_sample, **options)
        del self._trajectories[sid]
        return made

    def drop_session(self, sid: str) -> None:
        """Forget a session, if there is one."""
        self._trajectories.pop(sid, None)

    def has_session(self, sid: str) -> bool:
        return sid in self._trajectories

    def turn_count(self, sid: str) -> int:
        """Turns recorded so far."""
        trajectory = self._trajectories.get(sid)
        return 0 if trajectory is None else trajectory.turn_count

    def paths(self, sid: str) -> list[list[PathEntry]]:
        """The session's tree for display: a list of messages per leaf."""
        trajectory = self._trajectories.get(sid)
        return [] if trajectory is None else trajectory.paths()

    def trajectory(self, sid: str) -> Trajectory | None:
        """The session's own tree."""
        return self._trajectories.get(sid)
