"""What happens to a request before the model sees it: decode, refuse, stop, control, or hand over as a ``Generation``.

A bad request is answered with its own error and touches no other. Nothing in here waits: ``execute`` runs on Triton's
thread, and the backend takes generations over to its own.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from .coalesce import Coalescing
from .contract import Contract
from .control import Control, ControlOp, control_reply
from .engine_log import EngineLog
from .generation import Generation
from .guides import NO_GUIDES, guide_kinds
from .live import CancelPoller, DuplicateRequest, LiveRequests
from .loras import read_loras
from .parameters import Parameters
from .replies import Sender, control_outputs
from .requests import ControlRequest, GenerateRequest, InvalidRequest, Limits, Reader, StopRequest, decode

NO_FIGURES: Mapping[str, Any] = MappingProxyType({})


class Backend(Protocol):
    """A model. All three methods return at once and are called from any thread."""

    def submit(self, generation: Generation) -> None:
        """Sample for it until it ends; ``generation.finish`` or ``.fail`` is called exactly once."""
        ...

    def cancel(self, generation: Generation) -> None:
        """``generation.cancelled`` has become true; it may have ended meanwhile."""
        ...

    def control(self, call: ControlCall) -> None:
        """Perform ``call.control``, then ``call.answer`` or ``call.fail``, exactly once."""
        ...


class ControlCall:
    """A control request on its way through the backend. ``identity``: what an answer to ``stats`` says of the model besides."""

    def __init__(self, control: Control, sender: Sender, identity: Mapping[str, Any] = NO_FIGURES) -> None:
        self.control = control
        self._sender = sender
        self._identity = identity if control.op is ControlOp.STATS else NO_FIGURES

    def answer(self, weight_version: int, **figures: Any) -> None:
        """``figures`` are the answer's further JSON values."""
        document = {"op": str(self.control.op), "weight_version": weight_version, **self._identity, **figures}
        self._sender.send(control_outputs(control_reply(document)), final=True)

    def fail(self, message: str) -> None:
        self._sender.fail(message)


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """From the parameters that every model has."""

    limits: Limits
    """``vocab_size``, ``max_seq_len``, ``guided_decoding`` and ``loras``."""
    coalescing: Coalescing
    """``coalesce_ms`` (0 sends each token by itself), ``coalesce_per_live_ms`` and ``coalesce_max_ms``, in seconds."""
    engine_log: Path | None
    """``engine_log``, a path; empty for none."""
    log_prob_mode: str = "raw"
    """``log_prob_mode``: for ``stats``; what it does is the model's business."""

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> FrontSettings:
        """Raises: ParameterError."""
        log = parameters.text("engine_log", "")
        return cls(
            limits=Limits(
                vocab_size=parameters.integer("vocab_size", minimum=1),
                max_seq_len=parameters.integer("max_seq_len", minimum=2),
                guides=guide_kinds(parameters.text("guided_decoding", NO_GUIDES)),
                loras=frozenset(read_loras(parameters.text("loras", ""))),
            ),
            coalescing=Coalescing(
                shortest=parameters.number("coalesce_ms", 20) / 1000,
                per_live=parameters.number("coalesce_per_live_ms", 1) / 1000,
                longest=parameters.number("coalesce_max_ms", 100) / 1000,
            ),
            engine_log=Path(log) if log else None,
            log_prob_mode=parameters.text("log_prob_mode", "raw"),
        )

    def identity(self) -> dict[str, Any]:
        """What tells one start of a model from the next, and from other models: ``instance`` is another text each time."""
        return {
            "instance": secrets.token_hex(8),
            "log_prob_mode": self.log_prob_mode,
            "guided_decoding": sorted(self.limits.guides),
            "loras": sorted(self.limits.loras),
        }


class Front:
    """Stands before one backend; ``warn`` takes lines for the server's log."""

    def __init__(
        self, contract: Contract, settings: FrontSettings, backend: Backend, warn: Callable[[str], None]
    ) -> None:
        self._contract = contract
        self._settings = settings
        self._backend = backend
        self._warn = warn
        self._identity = settings.identity()
        self._live = LiveRequests(backend.cancel)
        self._log = EngineLog(settings.engine_log) if settings.engine_log else None
        self._poller = CancelPoller(self._live)

    def start(self) -> None:
        self._poller.start()

    def close(self) -> None:
        """After the backend has ended its generations."""
        self._poller.close()
        if self._log is not None:
            self._log.close()

    @property
    def live(self) -> int:
        """How many requests have not ended."""
        return len(self._live)

    def execute(self, requests: Iterable[tuple[Reader, Sender]]) -> None:
        """Take over each request; each is answered, now or later, by one final response."""
        for reader, sender in requests:
            try:
                self._accept(reader, sender)
            except (InvalidRequest, DuplicateRequest) as error:
                sender.fail(f"{self._contract.invalid_request_prefix}{error}")
            except Exception:
                # A fault in here must cost this request only; raised, it would fail the whole batch without an end for
                # each.
                self._warn(traceback.format_exc())
                sender.fail("the model failed to take the request; its log says why")

    def _accept(self, reader: Reader, sender: Sender) -> None:
        request = decode(reader, self._contract, self._settings.limits)
        match request:
            case StopRequest():
                self._live.cancel(request.request_id)
                sender.send({}, final=True)
            case ControlRequest():
                self._backend.control(ControlCall(request.control, sender, self._identity))
            case GenerateRequest():
                self._generate(request, sender)

    def _window(self) -> float:
        return self._settings.coalescing.window(self.live)

    def _generate(self, request: GenerateRequest, sender: Sender) -> None:
        generation = Generation(
            request,
            sender,
            window=self._window,
            log=self._log,
            on_end=self._live.discard,
            refusal=self._contract.invalid_request_prefix,
        )
        self._live.add(generation)
        try:
            self._backend.submit(generation)
        except BaseException:
            self._live.discard(generation)
            raise
