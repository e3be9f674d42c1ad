"""The generation loop when something breaks or changes: steps, logits, shutdown, weights. No server."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model_repo.common.control import ControlOp
from model_repo.transformers.loop import SHUTTING_DOWN
from tests.model_repo.tiny_transformers import Served, prompt_of, scored, serving


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with serving() as start:
        yield start


def test_a_broken_step_fails_the_live_requests_and_no_later_one(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    sent = [served.send(prompt_of(seed, 20), 200, seed=seed)[0] for seed in range(3)]
    for inbox in sent:
        inbox.wait_for_tokens()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(served.model, "forward", broken)
        for inbox in sent:
            inbox.wait()
    assert {inbox.error for inbox in sent} == {"the generation loop broke: device lost"}
    assert served.stats()["restarts"] == 1
    assert "device lost" in served.warnings[0]
    prompt = prompt_of(1, 20)
    reply = served.generate(prompt, 20)
    assert reply.log_probs == pytest.approx(scored(served.model, prompt, reply.ids), abs=1e-4)


def test_the_broken_batch_is_gone_before_the_next_is_built(serve: Any) -> None:
    made: list[weakref.ref[FailingBatch]] = []
    alive: list[bool] = []

    def make(sampler: Any) -> Any:
        alive.append(any(batch() is not None for batch in made))
        batch = FailingBatch()
        made.append(weakref.ref(batch))
        return batch

    served = serve(make=make)
    inbox, _ = served.send(prompt_of(1, 5), 5)
    inbox.wait()
    assert served.stats()["restarts"] == 1
    assert alive == [False, False]


def test_when_the_batch_cannot_be_built_again_every_request_fails(serve: Any) -> None:
    made: list[bool] = []

    def once(sampler: Any) -> Any:
        if made:
            raise MemoryError("no memory for the KV cache")
        made.append(True)
        return FailingBatch()

    served = serve(make=once)
    for _ in range(2):
        inbox, _ = served.send(prompt_of(1, 5), 5)
        inbox.wait()
    assert inbox.error is not None
    assert "no memory for the KV cache" in inbox.error
    assert served.stats()["live"] == 0


class FailingBatch:
    """A batch whose every step breaks."""

    def add(self, key: str, prompt_ids: list[int]) -> None: ...

    def step(self) -> None:
        raise RuntimeError("broken")

    def figures(self) -> dict[str, int]:
        return {}


def test_logits_that_are_not_finite_fail_the_request(serve: Any) -> None:
    served = serve()
    with torch.no_grad():
        served.model.lm_head.weight[5, 0] = float("nan")
    inbox, _ = served.send(prompt_of(1, 20), 20)
    inbox.wait()
    assert inbox.error == "the model's logits are not finite"
    assert served.stats()["running"] == 0


def test_closing_ends_what_is_live(serve: Any) -> None:
    served = serve()
    inbox, _ = served.send(prompt_of(1, 20), 200)
    inbox.wait_for_tokens()
    served.loop.close()
    assert inbox.error == SHUTTING_DOWN


def test_new_weights_take_effect_in_place_and_empty_the_cache(serve: Any, tmp_path: Path) -> None:
    served, prompt = serve(), prompt_of(1, 70)
    before = served.generate(prompt, 30)
    torch.manual_seed(1)
    state = {name: torch.randn_like(tensor) * 0.4 for name, tensor in served.model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    answer, error = served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=str(tmp_path))
    assert (answer, error) == ({"op": "update_weights", "weight_version": 9, "path": str(tmp_path)}, None)
    assert served.stats()["path"] == str(tmp_path)
    after = served.generate(prompt, 30)
    assert after.cached_tokens == 0
    assert {int(outputs["weight_version"][0, 0]) for outputs in after.outputs} == {9}
    assert after.ids != before.ids
    assert torch.equal(served.model.lm_head.weight, state["lm_head.weight"])
    assert after.log_probs == pytest.approx(scored(served.model, prompt, after.ids), abs=1e-4)


def test_weights_do_not_change_under_a_live_request(serve: Any, tmp_path: Path) -> None:
    served = serve()
    inbox, generation = served.send(prompt_of(1, 20), 200)
    inbox.wait_for_tokens()
    save_file(served.model.state_dict(), tmp_path / "model.safetensors")
    for op, more in ((ControlOp.UPDATE_WEIGHTS, {"version": 9, "path": str(tmp_path)}), (ControlOp.FLUSH, {})):
        _, error = served.control(op, **more)
        assert error == f"{op}: 1 requests are live; end or cancel them first"
    generation.mark_cancelled()
    inbox.wait()
    assert served.stats()["weight_version"] == 3


def test_the_same_weights_again_are_in_force_already(serve: Any, tmp_path: Path) -> None:
    """Whoever lost the answer asks again, when the next requests may be live; other weights need another version."""
    served = serve()
    save_file(served.model.state_dict(), tmp_path / "model.safetensors")
    update = {"version": 9, "path": str(tmp_path)}
    assert served.control(ControlOp.UPDATE_WEIGHTS, **update)[1] is None
    inbox, generation = served.send(prompt_of(1, 20), 200)
    inbox.wait_for_tokens()
    answer, error = served.control(ControlOp.UPDATE_WEIGHTS, **update)
    assert (answer, error) == ({"op": "update_weights", "weight_version": 9, "path": str(tmp_path)}, None)
    generation.mark_cancelled()
    inbox.wait()
    _, error = served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=str(tmp_path / "model.safetensors"))
    assert error == f"update_weights: version 9 are the weights of {tmp_path}; give others another"


def broken_states(good: dict[str, torch.Tensor]) -> Iterator[tuple[dict[str, torch.Tensor], str]]:
    yield {}, "is missing (21 such)"
    yield good | {"extra": torch.zeros(1)}, "the model has no weight extra (1 such)"
    yield {k: v for k, v in good.items() if k != "lm_head.weight"}, "the weight lm_head.weight is missing (1 such)"
    whole = good["model.norm.weight"].to(torch.int32)
    yield (
        good | {"model.norm.weight": whole},
        "model.norm.weight has dtype torch.int32, the model's torch.float32 (1 such)",
    )
    yield good | {"model.norm.weight": torch.zeros(3)}, "model.norm.weight has shape [3], the model's [32]"
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2):
        for value in (torch.nan, torch.inf, -torch.inf):
            wrong = torch.ones(32).index_fill(0, torch.tensor([17]), value).to(dtype)
            yield good | {"model.norm.weight": wrong}, "model.norm.weight has values that are not finite (1 such)"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_weights_of_another_dtype_are_taken(serve: Any, tmp_path: Path, dtype: torch.dtype) -> None:
    served = serve()
    state = {name: tensor.to(dtype) for name, tensor in served.model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    assert served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=str(tmp_path))[1] is None
    assert all(torch.equal(tensor, state[name].float()) for name, tensor in served.model.state_dict().items())


def test_a_wrong_state_is_refused_and_changes_nothing(serve: Any, tmp_path: Path) -> None:
    served = serve()
    good = {name: tensor.clone() for name, tensor in served.model.state_dict().items()}
    other = {name: tensor + 1 for name, tensor in good.items()}
    for state, message in broken_states(other):
        save_file(state, tmp_path / "model.safetensors")
        _, error = served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=str(tmp_path / "model.safetensors"))
        assert error is not None
        assert message in error
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    for path in (tmp_path, tmp_path / "absent", None):
        assert served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=path and str(path))[1] is not None
    assert all(torch.equal(tensor, good[name]) for name, tensor in served.model.state_dict().items())
    assert served.stats()["weight_version"] == 3
