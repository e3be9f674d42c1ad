"""The other side of ``models/misbehaving``: requests that ask for a behaviour, and the log that the model writes."""

from __future__ import annotations

import itertools
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from engine.client import TritonClient
from engine.engine_config import EngineFacts
from engine.types import Dialect, EngineInfo, GenerateRequest, LogProbMode, TokenChunk

MODELS = Path(__file__).parent / "models"
MISBEHAVING = "misbehaving"
INFO = EngineInfo("tensorrt_llm", LogProbMode.RAW, max_seq_len=4096, vocab_size=1000, weight_version=0)
FACTS = EngineFacts(max_seq_len=4096, vocab_size=1000, max_batch_size=8, tokens_per_block=4)
CUMULATIVE_INFO = EngineInfo(
    "tensorrt_llm",
    LogProbMode.PROCESSED,
    FACTS.max_seq_len,
    FACTS.vocab_size,
    weight_version=7,
    dialect=Dialect.CUMULATIVE,
    tokens_per_block=FACTS.tokens_per_block,
)
PROMPT_TOKENS = 8

_numbers = itertools.count()


class EventLog:
    """What the model has done, in order, as ``(request id, event)``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __contains__(self, event: tuple[str, str]) -> bool:
        return event in self.read()

    def read(self) -> list[tuple[str, str]]:
        if not self.path.exists():
            return []
        whole_lines = self.path.read_text().rpartition("\n")[0].splitlines()
        return [(entry["id"], entry["event"]) for entry in map(json.loads, whole_lines)]


def request(behaviour: str = "", max_tokens: int = 4, **fields: Any) -> GenerateRequest:
    """A request that the model answers in the way that ``behaviour`` names."""
    prompt = np.arange(PROMPT_TOKENS, dtype=np.int32)
    return GenerateRequest(f"test-{next(_numbers)}", prompt, max_tokens, session=behaviour, **fields)


async def collect(client: TritonClient, wanted: GenerateRequest) -> list[TokenChunk]:
    """All chunks of one generation."""
    async with aclosing(client.generate(wanted)) as chunks:
        return [chunk async for chunk in chunks]


async def sampled_ids(client: TritonClient, max_tokens: int = 4) -> list[int]:
    """The ids of a generation for which the model behaves: 0, 1, 2, ..."""
    chunks = await collect(client, request(max_tokens=max_tokens))
    return [int(token) for chunk in chunks for token in chunk.ids]
