"""A model on a real tritonserver, asked message by message through the wire contract."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.call import InferCall, infer_request, open_call
from engine.connection import Connection
from engine.contract import GENERATE_OUTPUTS, MODEL_NAME, WireTensor, encode_request
from engine.errors import EngineError
from engine.types import GenerateRequest
from tests.support.connections import connection_to

ANSWER_S = 60.0
"""For one response. Far more than any takes; reaching it fails the test."""


@dataclass
class Reply:
    """All responses to one request. ``error`` is empty where there was none."""

    messages: list[dict[str, WireTensor]] = field(default_factory=list)
    error: str = ""

    def joined(self, name: str, dtype: type) -> list[Any]:
        return [value for message in self.messages for value in np.frombuffer(message[name].data, dtype).tolist()]

    @property
    def ids(self) -> list[int]:
        return self.joined("output_ids", np.int32)

    @property
    def ids_by_message(self) -> list[list[int]]:
        return [Reply([message]).ids for message in self.messages]

    @property
    def log_probs(self) -> list[float]:
        return self.joined("output_log_probs", np.float32)

    @property
    def finish_reason(self) -> str:
        return self.messages[-1]["finish_reason"].data[4:].decode()

    @property
    def cached_tokens(self) -> int:
        return int(np.frombuffer(self.messages[-1]["cached_tokens"].data, np.int32)[0])


@dataclass
class Served:
    """The server at ``address``, a connection to it, and its model's engine log."""

    address: str
    connection: Connection
    log_path: Path

    async def ask(
        self,
        tensors: Sequence[WireTensor],
        request_id: str = "",
        outputs: Sequence[str] = GENERATE_OUTPUTS,
        **origin: Any,
    ) -> Reply:
        """The whole answer. ``origin`` is ``session`` and ``turn``."""
        async with self.call(tensors, request_id, outputs, **origin) as call:
            return await rest_of(call)

    async def generate(self, request: GenerateRequest, *replaced: WireTensor) -> Reply:
        """The whole answer to ``request``, some of its tensors replaced."""
        tensors = changed(request, *replaced)
        return await self.ask(tensors, request.request_id, session=request.session, turn=request.turn)

    @asynccontextmanager
    async def call(
        self,
        tensors: Sequence[WireTensor],
        request_id: str = "",
        outputs: Sequence[str] = GENERATE_OUTPUTS,
        *,
        session: str = "",
        turn: int = 0,
    ) -> AsyncIterator[InferCall]:
        """A call whose request was sent and whose responses are still to be read; left early, it is cancelled."""
        message = infer_request(MODEL_NAME, request_id, tensors, outputs)
        message.parameters["session"].string_param = session
        message.parameters["turn"].int64_param = turn
        async with open_call(self.connection, self.address, request_id) as call:
            await call.send(message, ANSWER_S)
            yield call

    def log(self) -> dict[str, dict[str, Any]]:
        """The engine log's entries of requests with an id, by it. Raises: AssertionError, if an id is there twice."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        entries = [entry for entry in lines if entry["request_id"]]
        by_id = {entry["request_id"]: entry for entry in entries}
        assert len(by_id) == len(entries)
        return by_id


@asynccontextmanager
async def connected(address: str, log_path: Path) -> AsyncIterator[Served]:
    async with connection_to(address) as connection:
        yield Served(address, connection, log_path)


async def rest_of(call: InferCall) -> Reply:
    """What is still to come of the call's responses, to the final one or an error."""
    reply = Reply()
    try:
        while (response := await call.read(ANSWER_S)) is not None:
            reply.messages.append(response.outputs)
            if response.final:
                break
    except EngineError as error:
        reply.error = str(error)
    return reply


def changed(request: GenerateRequest, *replaced: WireTensor, without: Sequence[str] = ()) -> list[WireTensor]:
    """The request's tensors, some replaced, added or left out."""
    named = {tensor.name: tensor for tensor in encode_request(request)}
    named |= {tensor.name: tensor for tensor in replaced}
    return [tensor for name, tensor in named.items() if name not in without]


def scalar(name: str, dtype: str, value: Any) -> WireTensor:
    kinds = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_, "UINT64": np.uint64}
    return WireTensor(name, dtype, (1, 1), np.array([value], dtype=kinds[dtype]).tobytes())


def text(name: str, value: str) -> WireTensor:
    data = value.encode()
    return WireTensor(name, "BYTES", (1, 1), len(data).to_bytes(4, "little") + data)
