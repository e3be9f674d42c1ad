"""How a generation is asked for and read, in the dialect that the model speaks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from engine import cumulative
from engine.contract import GENERATE_OUTPUTS, WireTensor, decode_chunk, encode_request
from engine.errors import EngineProtocolError
from engine.types import Dialect, EngineInfo, GenerateRequest, TokenChunk


class Reader(Protocol):
    """The responses of one generation become chunks; what contradicts the contract, or what came before, is an error."""

    @property
    def finished(self) -> bool: ...

    def accept(self, outputs: Mapping[str, WireTensor], *, final: bool) -> TokenChunk:
        """Raises: EngineProtocolError."""
        ...


def inputs_and_outputs(request: GenerateRequest, info: EngineInfo) -> tuple[list[WireTensor], Sequence[str]]:
    """The input tensors, and the names of the outputs to ask for. Raises: EngineRejected."""
    if info.dialect is Dialect.CUMULATIVE:
        return cumulative.encode(request, info), cumulative.wanted_outputs(info)
    return encode_request(request), GENERATE_OUTPUTS


def reader_of(request: GenerateRequest, info: EngineInfo) -> Reader:
    if info.dialect is Dialect.CUMULATIVE:
        return cumulative.CumulativeReader(request, info)
    return DeltaReader(request, info)


class DeltaReader:
    """What one generation of our contract has given so far, and the checks that span its chunks."""

    def __init__(self, request: GenerateRequest, info: EngineInfo) -> None:
        self._request = request
        self._vocab_size = info.vocab_size
        self._count = 0
        self.finished = False

    def accept(self, outputs: Mapping[str, WireTensor], *, final: bool) -> TokenChunk:
        """The response's chunk. Raises: EngineProtocolError."""
        chunk = decode_chunk(outputs, final=final, vocab_size=self._vocab_size)
        self._count += len(chunk.ids)
        if self._count > self._request.max_tokens:
            raise EngineProtocolError(f"{self._count} tokens came, {self._request.max_tokens} were asked for")
        if chunk.finished is not None:
            self._check_end(chunk.finished.cached_tokens)
        return chunk

    def _check_end(self, cached_tokens: int) -> None:
        prompt = len(self._request.prompt_ids)
        if not 0 <= cached_tokens <= prompt:
            raise EngineProtocolError(f"{cached_tokens} cached tokens for a prompt of {prompt}")
        self.finished = True
