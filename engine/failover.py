"""When a segment failed: may its generation go on, where not, and for how long is that waited for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.continuation import Continuation
from engine.errors import EngineError, EngineFailed, EngineProtocolError, EngineRejected, EngineTimeout


@dataclass(slots=True)
class Trail:
    """What happened to one generation so far. Times are seconds of the pool's clock."""

    progress: Continuation
    max_failures: int
    wait_s: float
    error: EngineError | None = None
    failures: int = 0
    silent: dict[str, int] = field(default_factory=dict)
    """Endpoints that fell silent though they answer checks, and the epoch of their breaker: in another it is another server."""
    barren: dict[str, int] = field(default_factory=dict)
    """The same of endpoints at which a segment failed before there was any token."""
    was_held: bool = False
    _since: float | None = None
    """When the wait for an endpoint began."""

    @property
    def patient(self) -> bool:
        """Whether it waits for an endpoint: it has tokens to lose, or has waited for a release already."""
        return self.progress.count > 0 or self.was_held

    def failed(self, error: EngineError, address: str, epoch: int) -> None:
        """A segment failed that began at ``address`` in ``epoch``. Raises: EngineError, if that is the generation's end."""
        count = self.progress.count
        if isinstance(error, EngineProtocolError) or (isinstance(error, EngineRejected) and not count):
            raise error
        if isinstance(error, EngineRejected):
            raise EngineFailed(f"the rest of a reply that broke off was refused: {error}") from error
        self.error = error
        self.failures += 1
        if isinstance(error, EngineTimeout):
            self.silent[address] = epoch
        if not count:
            self.barren[address] = epoch
        if self.failures > self.max_failures:
            raise error

    def avoids(self, address: str, epoch: int) -> bool:
        """Whether the next segment is not to go there."""
        return self.silent.get(address) == epoch or (not self.progress.count and self.barren.get(address) == epoch)

    def check_continuable(self) -> None:
        """Raises: EngineFailed, if what it has cannot be gone on from exactly."""
        obstacle = self.progress.obstacle
        if obstacle is not None:
            why = str(self.error) if self.error else "the reply was cut for an update of the weights"
            raise EngineFailed(f"{why}; a reply with {obstacle} cannot go on exactly, so send the request again")

    def held(self) -> None:
        """It was on hold; its wait for an endpoint begins anew."""
        self.was_held, self._since = True, None

    def placed(self) -> None:
        """An endpoint was found."""
        self._since = None

    def patience_left(self, now: float) -> float:
        """Seconds for which an endpoint is still waited for; 0 where that is not worth while."""
        if not self.patient:
            return 0.0
        self._since = now if self._since is None else self._since
        return max(0.0, self._since + self.wait_s - now)
