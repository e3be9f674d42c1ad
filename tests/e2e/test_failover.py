"""Two real tritonservers with one real model, and one of them killed under its sessions: each goes on on the other, exactly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from adapter.config import Config
from adapter.engines import engine_pool
from engine.launch import EmbeddedTriton
from engine.pool import Pool
from engine.types import GenerateRequest, SamplingParams, TokenChunk
from tests.engine.fake_endpoints import Reading
from tests.support.triton import running_triton
from tests.support.wait import until

VOCAB, CONTEXT, TOKENS = 96, 512, 300
SESSIONS = 8
TIE = 1e-4
"""Logits: where the two best are this close, rounding decides which of them is the greedy token."""
LOG_PROB_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, large enough that what is sampled depends on what was."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@asynccontextmanager
async def two_servers(model_dir: Path, folder: Path) -> AsyncIterator[tuple[EmbeddedTriton, EmbeddedTriton]]:
    parameters = {"model_dir": str(model_dir), "max_seq_len": str(CONTEXT), "coalesce_ms": "5"}
    async with (
        running_triton("transformers", folder / "one", parameters) as one,
        running_triton("transformers", folder / "two", parameters) as two,
    ):
        yield one, two


def wanted(number: int) -> GenerateRequest:
    prompt = np.array([7 + number, 11, 13 * number % VOCAB], np.int32)
    return GenerateRequest(
        f"gen-{number}", prompt, TOKENS, SamplingParams(temperature=0.0), session=f"session-{number}"
    )


async def test_sessions_of_a_killed_server_go_on_on_the_other(model_dir: Path, tmp_path: Path) -> None:
    async with two_servers(model_dir, tmp_path) as servers:
        addresses = tuple(server.grpc_address for server in servers)
        async with engine_pool(Config(triton=addresses), addresses) as pool:
            undisturbed = await asyncio.gather(*(Reading(pool, wanted(number)).task for number in range(SESSIONS)))
            readings = [Reading(pool, wanted(number)) for number in range(SESSIONS)]
            await until(lambda: all(len(reading.ids) > 5 for reading in readings))
            victim = max(servers, key=lambda server: _live(pool, server.grpc_address))
            os.killpg(victim.pid, signal.SIGKILL)
            disturbed = [await asyncio.wait_for(reading.task, 60) for reading in readings]
    moved = [chunks for chunks in disturbed if chunks[-1].segment == 1]
    assert moved, "no generation ran on the server that was killed"
    for chunks in moved:
        origins = [chunk.origin.endpoint for chunk in chunks if chunk.origin is not None]
        assert set(origins[: origins.index(origins[-1])]) == {victim.grpc_address}
        assert origins[-1] != victim.grpc_address
    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    for number in range(SESSIONS):
        check_greedy(model, wanted(number), disturbed[number], undisturbed[number])


def _live(pool: Pool, address: str) -> int:
    return next(state.live for state in pool.endpoints() if state.address == address)


def check_greedy(
    model: LlamaForCausalLM, request: GenerateRequest, chunks: list[TokenChunk], expected: list[TokenChunk]
) -> None:
    """Ids as undisturbed, up to a tie; log probs those of the model, whatever the segments. Raises: AssertionError."""
    ids, whole = (np.concatenate([chunk.ids for chunk in each]) for each in (chunks, expected))
    log_probs = np.concatenate([chunk.log_probs for chunk in chunks])
    assert len(ids) == len(log_probs) == len(whole) == TOKENS
    joined = np.concatenate([request.prompt_ids, ids]).astype(np.int64)
    with torch.inference_mode():
        logits = model(torch.from_numpy(joined)[None]).logits[0, len(request.prompt_ids) - 1 : -1].float()
    plain = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(ids.astype(np.int64))[:, None])[:, 0].numpy()
    assert np.abs(plain - log_probs).max() <= LOG_PROB_TOLERANCE
    differing = np.flatnonzero(ids != whole)
    if differing.size:
        best, second = logits[differing[0]].topk(2).values.tolist()
        assert best - second < TIE, f"token {differing[0]} is {ids[differing[0]]}, not {whole[differing[0]]}"
