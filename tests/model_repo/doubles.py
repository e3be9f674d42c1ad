"""Stand-ins for Triton's side of a model, and a schedule whose time is not real."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from common.contract import NUMPY_DTYPES, Contract, parse_contract
from common.requests import GenerateRequest, Limits, Sampling
from numpy.typing import NDArray

from engine.contract import WireTensor, contract_document

LIMITS = Limits(vocab_size=1000, max_seq_len=64)


def contract() -> Contract:
    """The table of ``engine.contract``, as a model reads it."""
    return parse_contract(contract_document())


@dataclass(frozen=True)
class FakeReader:
    """A request as ``requests.Reader``; arrays have their batch dimension."""

    tensors: Mapping[str, NDArray[Any]]
    id: str = "r1"
    parameters_json: str = "{}"

    def request_id(self) -> str:
        return self.id

    def parameters(self) -> str:
        return self.parameters_json

    def tensor(self, name: str) -> NDArray[Any] | None:
        return self.tensors.get(name)


def arrays_from_wire(tensors: list[WireTensor]) -> dict[str, NDArray[Any]]:
    """What Triton makes of the client's tensors; those of BYTES hold one string."""
    return {tensor.name: _array(tensor).reshape(tensor.shape) for tensor in tensors}


def _array(tensor: WireTensor) -> NDArray[Any]:
    if tensor.dtype == "BYTES":
        return np.array([tensor.data[4:]], dtype=np.object_)
    return np.frombuffer(tensor.data, dtype=NUMPY_DTYPES[tensor.dtype])


@dataclass
class FakeSender:
    """Keeps what was sent, and whether it was sent rightly: nothing may follow a final response."""

    responses: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    finals: int = 0
    cancelled: bool = False
    on_send: Callable[[], None] = lambda: None

    def send(self, outputs: Mapping[str, NDArray[Any]], *, final: bool) -> None:
        assert not self.finals, "a response after the final one"
        self.on_send()
        self.responses.append(dict(outputs))
        self.finals += final

    def fail(self, message: str) -> None:
        assert not self.finals, "an error after the final response"
        self.error = message
        self.finals += 1

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def ids(self) -> list[list[int]]:
        """The output ids of each response that has any tensors."""
        return [r["output_ids"].reshape(-1).tolist() for r in self.responses if "output_ids" in r]

    @property
    def finish_reason(self) -> str | None:
        last = self.responses[-1] if self.responses else {}
        return last["finish_reason"][0, 0].decode() if "finish_reason" in last else None


def make_request(**changes: Any) -> GenerateRequest:
    """A streamed request for up to 10 tokens with end id 9; ``changes`` are fields of it or of its sampling."""
    sampling = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
        "min_tokens": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    sampling |= {name: changes.pop(name) for name in list(changes) if name in sampling}
    fields: dict[str, Any] = {
        "request_id": "r1",
        "prompt_ids": np.array([1, 2, 3], dtype=np.int32),
        "max_tokens": 10,
        "end_ids": (9,),
        "stop_words": (),
        "sampling": Sampling(**sampling),
        "streaming": True,
        "return_log_probs": True,
        "exclude_input_in_output": True,
        "session": "",
        "turn": 0,
    }
    return GenerateRequest(**(fields | changes))


class VirtualSchedule:
    """``events.Schedule`` over a time that jumps from event to event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def at(self, due: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (due, next(self._order), event))

    def soon(self, event: Callable[[float], None]) -> None:
        self.at(self.now, event)

    def run(self, until: float = float("inf")) -> None:
        """Run what is due up to ``until``."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, event = heapq.heappop(self._heap)
            event(self.now)
        if until != float("inf"):
            self.now = until
