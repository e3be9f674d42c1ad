"""LoRA adapters over a tiny random model: what is sampled is what the merged weights say, and adapters share nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from model_repo.common.control import ControlOp
from model_repo.transformers.lora import Adapters
from model_repo.transformers.settings import SettingsError
from tests.model_repo.tiny_transformers import Served, prompt_of, scored, serving, tiny_model

RANK, ALPHA = 4, 12
PROJECTION = "model.layers.1.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "target_modules": ["q_proj"]}


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with serving() as start:
        yield start


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def make_adapter(folder: Path, seed: int, only: str = "", **config: Any) -> dict[str, torch.Tensor]:
    """A random adapter of every linear layer, or of one, in ``folder``. Gives its matrices."""
    random = torch.Generator().manual_seed(seed)
    state = {}
    for name, layer in linear_layers(tiny_model()).items():
        if only in name:
            down = torch.randn(RANK, layer.in_features, generator=random) * 0.3
            up = torch.randn(layer.out_features, RANK, generator=random) * 0.3
            state |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
    write_adapter(folder, state, CONFIG | config)
    return state


def write_adapter(folder: Path, state: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))


def merged(model: nn.Module, state: dict[str, torch.Tensor], scale: float) -> nn.Module:
    """A model without hooks, whose weights have the adapter in them."""
    plain = tiny_model()
    plain.load_state_dict(copy.deepcopy(model.state_dict()))
    with torch.no_grad():
        for name, layer in linear_layers(plain).items():
            down = state.get(f"base_model.model.{name}.lora_A.weight")
            if down is not None:
                layer.weight += scale * state[f"base_model.model.{name}.lora_B.weight"] @ down
    return plain


@pytest.mark.parametrize(("rslora", "scale"), [(False, ALPHA / RANK), (True, ALPHA / RANK**0.5)])
def test_log_probs_are_those_of_the_merged_weights(serve: Any, tmp_path: Path, rslora: bool, scale: float) -> None:
    state = make_adapter(tmp_path / "sql", 1, use_rslora=rslora)
    served, prompt = serve(loras={"sql": tmp_path / "sql"}), prompt_of(1, 30)
    reply = served.generate(prompt, 40, lora="sql")
    assert reply.log_probs == pytest.approx(scored(merged(served.model, state, scale), prompt, reply.ids), abs=1e-4)
    assert reply.log_probs != pytest.approx(scored(served.model, prompt, reply.ids), abs=1e-2)
    plain = served.generate(prompt, 40)
    assert plain.log_probs == pytest.approx(scored(tiny_model(), prompt, plain.ids), abs=1e-4)


def test_adapters_at_once_share_no_prefix_and_no_pass(serve: Any, tmp_path: Path) -> None:
    """One prompt for all, sent twice: the second time it is cached, each time by its own adapter."""
    states = {name: make_adapter(tmp_path / name, seed) for seed, name in enumerate(("sql", "law"))}
    served, prompt = serve(loras={name: tmp_path / name for name in states}), prompt_of(7, 40)
    judges = {name: merged(served.model, state, ALPHA / RANK) for name, state in states.items()} | {"": tiny_model()}
    for cached in (0, 32):
        inboxes = {name: served.send(prompt, 30, lora=name, seed=3)[0] for name in judges}
        for name, inbox in inboxes.items():
            inbox.wait()
            assert inbox.error is None
            assert int(inbox.outputs[-1]["cached_tokens"][0, 0]) == cached
            assert inbox.log_probs == pytest.approx(scored(judges[name], prompt, inbox.ids), abs=1e-4), name
    assert len({tuple(inbox.ids) for inbox in inboxes.values()}) == 3
    assert served.stats()["live"] == 0


def test_an_adapter_stays_when_the_weights_beneath_it_change(serve: Any, tmp_path: Path) -> None:
    state = make_adapter(tmp_path / "sql", 1)
    served, prompt = serve(loras={"sql": tmp_path / "sql"}), prompt_of(1, 20)
    served.generate(prompt, 5, lora="sql")
    torch.manual_seed(9)
    new = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in tiny_model().state_dict().items()}
    save_file(new, tmp_path / "new.safetensors")
    answer, error = served.control(ControlOp.UPDATE_WEIGHTS, version=4, path=str(tmp_path / "new.safetensors"))
    assert (error, answer["weight_version"]) == (None, 4)
    reply = served.generate(prompt, 20, lora="sql")
    assert int(reply.outputs[-1]["cached_tokens"][0, 0]) == 0
    judge = merged(served.model, state, ALPHA / RANK)
    assert reply.log_probs == pytest.approx(scored(judge, prompt, reply.ids), abs=1e-4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"use_dora": True}, "sql: use_dora = True is not supported"),
        ({"bias": "all"}, "sql: bias = 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "sql: modules_to_save = "),
        ({"rank_pattern": {"q_proj": 2}}, "sql: rank_pattern = "),
        ({"peft_type": "IA3"}, "sql: peft_type = 'IA3'"),
        ({"r": None}, "sql: .*adapter_config.json cannot be read"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    make_adapter(tmp_path, 1, only=PROJECTION, **config)
    with pytest.raises(SettingsError, match=f"parameter loras: {reason}"):
        Adapters(tiny_model(), {"sql": tmp_path})


DOWN, UP = f"base_model.model.{PROJECTION}.lora_A.weight", f"base_model.model.{PROJECTION}.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({DOWN: None}, "one of lora_A and lora_B is missing"),
        ({DOWN: torch.zeros(RANK, 31)}, "do not fit"),
        ({UP: torch.zeros(32, RANK + 1)}, "do not fit"),
        ({UP: torch.full((32, RANK), torch.nan)}, "values that are not finite"),
        ({"base_model.model.embed.lora_A.weight": torch.zeros(1)}, "embed: the model has no such linear layer"),
        ({"lm_head.weight": torch.zeros(1)}, "lm_head.weight is not a LoRA matrix"),
    ],
)
def test_matrices_that_do_not_fit_the_model_are_refused(tmp_path: Path, change: Any, reason: str) -> None:
    state = make_adapter(tmp_path, 1, only=PROJECTION) | change
    write_adapter(tmp_path, {name: tensor for name, tensor in state.items() if tensor is not None}, CONFIG)
    with pytest.raises(SettingsError, match=f"parameter loras: sql: .*{reason}"):
        Adapters(tiny_model(), {"sql": tmp_path})


def test_an_adapter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"parameter loras: sql: .*adapter_config\.json cannot be read"):
        Adapters(tiny_model(), {"sql": tmp_path})
