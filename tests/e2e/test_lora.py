"""A LoRA adapter behind a real Triton, over HTTP, beside the model itself; then both verifications, which tell them apart.

Both have random weights, and the demo model's vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from adapter.config import Config
from adapter.render.prompt import Renderer
from engine.client import TritonClient
from engine.probe import probe
from engine.replay_turn import replay_turn, targets_of
from engine.sample_rows import read_sample
from engine.verify import VerifyReport, verify_samples
from tests.e2e.test_guided import save_model
from tests.support.server import TestServer, serving
from tests.support.triton import running_triton

RANK = 4


def save_adapter(folder: Path, model_dir: Path) -> None:
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    state = {}
    for name, layer in layers.items():
        if name != "lm_head":
            state[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, layer.in_features) * 0.2
            state[f"base_model.model.{name}.lora_B.weight"] = torch.randn(layer.out_features, RANK) * 0.2
    folder.mkdir()
    save_file(state, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(f'{{"r": {RANK}, "lora_alpha": 8, "peft_type": "LORA"}}')


async def talk(adapter: TestServer) -> list[dict[str, Any]]:
    """Two turns of each, at once in one session; its samples."""
    async with adapter.http.post("/v1/sessions", json={"sid": "both"}) as response:
        assert response.status == 201
    for model in ("base", "sql"):
        messages: list[dict[str, Any]] = []
        for _ in range(2):
            messages.append({"role": "user", "content": "Go on."})
            body = {"model": model, "messages": messages, "max_tokens": 12}
            async with adapter.http.post("/s/both/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                messages.append((await response.json())["choices"][0]["message"])
    async with adapter.http.post("/v1/sessions/both/finish") as response:
        return list((await response.json())["samples"])


def worst(report: VerifyReport) -> float:
    return report.max_difference or 0.0


async def test_each_is_verified_by_its_own_weights(tmp_path: Path) -> None:
    model_dir, lora = tmp_path / "model", tmp_path / "sql"
    save_model(model_dir)
    save_adapter(lora, model_dir)
    parameters = {"model_dir": str(model_dir), "max_seq_len": "1024", "loras": f"sql={lora}"}
    async with running_triton("transformers", tmp_path, parameters) as triton:
        async with TritonClient(triton.grpc_address, await probe(triton.grpc_address)) as engine:
            config = Config(served_model_name="base", lora=("sql",))
            async with serving(engine, Renderer.load(model_dir), config) as adapter:
                samples = await talk(adapter)
            rows = [read_sample(sample, engine.info.vocab_size) for sample in samples]
            targets = [target for at, row in enumerate(rows) for target in targets_of(at, row)]
            outcomes = [await replay_turn(engine, target, probes=4) for target in targets]
    assert (
        sorted(turn["model"] for sample in samples for turn in sample["metadata"]["turns"])
        == ["base"] * 2 + ["sql"] * 2
    )
    assert all(outcome.agreeing.all() for outcome in outcomes)

    assert worst(verify_samples(samples, model_dir, served_model="base")) < 1e-3
    assert worst(verify_samples(samples, model_dir, served_model="sql", lora=lora)) < 1e-3
    assert worst(verify_samples(samples, model_dir, served_model="sql")) > 1e-2
    mixed = verify_samples(samples, model_dir)
    assert any("several served models sampled this: base, sql; name one" in failure for failure in mixed.failures)
    unknown = verify_samples(samples, model_dir, served_model="law")
    assert any("nothing was sampled by 'law'; there is base, sql" in failure for failure in unknown.failures)
