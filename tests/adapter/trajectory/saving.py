"""A trajectory that keeps what a journal would be given, as the journal's bytes."""

from __future__ import annotations

from typing import Any

from adapter.storage.frames import Frame, FrameKind, decode_frame
from adapter.trajectory import Generation, Plan, SavedTurn, Trajectory, TurnRecord
from adapter.types import Message


class SavingTrajectory(Trajectory):
    """``journal`` holds a frame for each turn."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.journal: list[bytes] = []

    def commit(self, plan: Plan, turn: TurnRecord, message: Message | None, *more: Any, **told: Any) -> Generation:
        assert plan.known_tokens == plan.known_ids().size
        return super().commit(plan, turn, message, *more, save=lambda saved: self._keep(FrameKind.TURN, saved), **told)

    def record_interrupted(self, plan: Plan, turn: TurnRecord, message: Message, **told: Any) -> None:
        super().record_interrupted(
            plan, turn, message, save=lambda saved: self._keep(FrameKind.INTERRUPTED, saved), **told
        )

    def rebuilt(self) -> SavingTrajectory:
        """Another one, out of the journal's bytes alone."""
        other = SavingTrajectory(self._fork_threshold, self._require_log_probs, policy=self.policy)
        frames = [decode_frame(memoryview(data)) for data in self.journal]
        other.rebuild((SavedTurn(frame.header, frame.arrays), frame.kind == FrameKind.TURN) for frame in frames)
        other.journal = list(self.journal)
        return other

    def _keep(self, kind: FrameKind, saved: SavedTurn) -> None:
        self.journal.append(Frame(kind, saved.header, saved.arrays).encode())
