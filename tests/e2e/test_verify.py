"""Both verifications, as commands, on turns that a real Triton with a real, if tiny, model sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from adapter.storage.export import write_export
from engine import replay, verify
from engine.client import TritonClient
from engine.probe import probe
from engine.types import GenerateRequest, SamplingParams
from tests.support.triton import running_triton

VOCAB = 97


@dataclass(frozen=True)
class Rollout:
    """An engine that runs, its weights, and the samples of two sessions of it."""

    address: str
    model_dir: Path
    samples: list[dict[str, Any]]


@pytest.fixture(scope="module")
async def rollout(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rollout]:
    run_dir = tmp_path_factory.mktemp("verify")
    save_model(run_dir / "model")
    parameters = {"model_dir": str(run_dir / "model"), "max_seq_len": "256"}
    async with running_triton("transformers", run_dir, parameters) as triton:
        async with TritonClient(triton.grpc_address, await probe(triton.grpc_address)) as client:
            samples = [await sample_of(client, seed=1), await sample_of(client, seed=2, temperature=0.6, top_p=0.8)]
        yield Rollout(triton.grpc_address, run_dir / "model", samples)


def save_model(folder: Path) -> None:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


async def sample_of(client: TritonClient, **sampling: Any) -> dict[str, Any]:
    """Three turns of ten tokens, two tokens of context between them."""
    prompt = [5, 17, 44, 3, 90, 61, 8]
    tokens, mask, recorded, turns = list(prompt), [], [], []
    for turn in range(1, 4):
        params = SamplingParams(**sampling)
        request = GenerateRequest(f"turn-{turn}", np.array(tokens, np.int32), 10, params)
        async with aclosing(client.generate(request)) as stream:
            chunks = [chunk async for chunk in stream]
        start = len(mask)
        turns.append(
            asdict(params)
            | {"turn_index": turn, "start": start, "end": start + 10, "trained": True, "log_prob_mode": "raw"}
            | {"versions": [[start, start + 10, chunks[-1].weight_version]]}
        )
        tokens += [*np.concatenate([chunk.ids for chunk in chunks]).tolist(), 50, turn]
        recorded += [*np.concatenate([chunk.log_probs for chunk in chunks]).tolist(), 0.0, 0.0]
        mask += [1] * 10 + [0] * 2
    return {
        "tokens": tokens,
        "response_length": len(mask),
        "loss_mask": mask,
        "rollout_log_probs": recorded,
        "metadata": {"turns": turns},
    }


async def told(capsys: pytest.CaptureFixture[str], main: Any, samples: list[Any], path: Path, *arguments: str) -> Any:
    write_export({"samples": samples}, path)
    status = await asyncio.to_thread(main, [str(path), *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


async def test_the_weights_confirm_every_token(
    rollout: Rollout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", str(rollout.model_dir))
    status, report = await told(capsys, verify.main, rollout.samples, tmp_path / "s.jsonl", *arguments)
    assert (status, report["trained_tokens"], report["failures"]) == (0, 60, [])
    assert report["max_difference"] < 1e-4


async def test_the_engine_confirms_every_token(
    rollout: Rollout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--triton", rollout.address, "--same-ids")
    status, report = await told(capsys, replay.main, rollout.samples, tmp_path / "s.jsonl", *arguments)
    assert (status, report["same_ids"], report["compared_tokens"], report["failures"]) == (0, 6, 60, [])
    assert report["max_difference"] < 1e-4
    assert [control["caught"] for control in report["controls"]] == [True, True]


async def test_the_engine_contradicts_a_changed_prompt(
    rollout: Rollout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    altered = json.loads(json.dumps(rollout.samples))
    altered[1]["tokens"][2] = (altered[1]["tokens"][2] + 1) % VOCAB
    arguments = ("--triton", rollout.address)
    status, report = await told(capsys, replay.main, altered, tmp_path / "s.jsonl", *arguments)
    assert status == 1
    assert report["contradicted"] or report["max_difference"] > 0.01
