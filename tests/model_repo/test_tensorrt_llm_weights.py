"""The loop over the LLM API's stand-in: new weights, and what breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common.control import Control, ControlOp

from model_repo.tensorrt_llm import ipc_weights, llm_engine
from model_repo.tensorrt_llm.settings import SettingsError
from tests.model_repo.llm_engines import ANSWER_S, PROMPT, Engine, raw_log_probs, request, running
from tests.support.llm_api_stand_in import NEW, OLD


@pytest.fixture(scope="module")
def new_engine(llm_dir: Path) -> Iterator[Engine]:
    with running(NEW, llm_dir) as engine:
        yield engine


@pytest.mark.parametrize("flavour", [OLD, NEW])
def test_new_weights_sample_under_their_version_and_reuse_nothing_old(
    flavour: str, llm_dir: Path, network_module: Any, tmp_path: Path
) -> None:
    with running(flavour, llm_dir) as engine:
        swap_weights(engine, network_module, tmp_path)


def swap_weights(engine: Engine, network_module: Any, tmp_path: Path) -> None:
    asked = request(prompt_ids=np.arange(64, dtype=np.int32), temperature=0.0, max_tokens=20)
    engine.ask(asked)
    file = network_module.write_weights(tmp_path / "model.safetensors", seed=2)
    update = Control(ControlOp.UPDATE_WEIGHTS, 5, str(tmp_path))
    assert engine.control(update).error is None
    sender = engine.ask(asked)
    assert (sender.last("cached_tokens"), sender.last("weight_version")) == (0, 5)
    new = raw_log_probs(network_module.Network(file.parent), list(range(64)), sender.all_ids)
    assert sender.log_probs == pytest.approx(new, abs=1e-5)
    assert engine.control(update).error is None  # asked twice, done once


@pytest.mark.parametrize(
    ("path", "words"),
    [("nowhere", "cannot be read as safetensors"), (None, "path is missing"), ("short", "is missing")],
)
def test_weights_that_cannot_be_taken_leave_the_old_ones(
    new_engine: Engine, tmp_path: Path, path: str | None, words: str
) -> None:
    from safetensors.numpy import save_file

    save_file({"head.weight": np.zeros((64, 16), np.float32)}, tmp_path / "short")
    where = None if path is None else str(tmp_path / path)
    error = new_engine.control(Control(ControlOp.UPDATE_WEIGHTS, 9, where)).error
    assert error is not None and words in error
    assert new_engine.ask(request()).last("weight_version") == 0


def test_weights_wait_for_live_requests(new_engine: Engine, llm_dir: Path) -> None:
    generation, sender = new_engine.begin(request(max_tokens=250))
    assert sender.begun.wait(ANSWER_S)
    error = new_engine.control(Control(ControlOp.UPDATE_WEIGHTS, 9, str(llm_dir))).error
    new_engine.loop.cancel(generation)
    assert sender.done.wait(ANSWER_S)
    assert error == "update_weights: 1 requests are live; end or cancel them first"


def test_an_engine_whose_workers_are_gone_is_loaded_anew(llm_dir: Path) -> None:
    with running(NEW, llm_dir) as engine:
        _, sender = engine.begin(request(max_tokens=250))
        assert sender.begun.wait(ANSWER_S)
        engine.engine._llm._executor.crash()
        assert sender.done.wait(ANSWER_S)
        assert sender.error is None or "workers are gone" in sender.error
        assert engine.ask(request()).finish_reason == "length"
        assert any("workers are gone" in warning for warning in engine.warnings)


def test_weights_go_into_running_workers_where_there_is_ray(
    monkeypatch: pytest.MonkeyPatch, network_module: Any, llm_dir: Path, tmp_path: Path
) -> None:
    """The workers' side is the stand-in's; handles that only a GPU has are copies here, of one device."""
    monkeypatch.setattr(ipc_weights, "local_devices", lambda: [torch.device("cpu")])
    monkeypatch.setattr(llm_engine, "local_devices", lambda: [torch.device("cpu")])
    monkeypatch.setattr(ipc_weights, "device_name", str)
    monkeypatch.setattr(
        ipc_weights, "handles_of", lambda tensors: [(name, (torch.clone, (t,))) for name, t in tensors.items()]
    )
    monkeypatch.setattr(ipc_weights, "BUCKET_BYTES", 1)
    settings = tmp_path / "engine.yaml"
    settings.write_text("orchestrator_type: ray\n")
    new = tmp_path / "new"
    new.mkdir()
    network_module.write_weights(new / "model.safetensors", seed=2)
    with running(NEW, llm_dir, engine_yaml=str(settings), weight_update="in_place") as engine:
        llm = engine.engine._llm
        assert llm.args["ray_worker_extension_cls"].endswith("rlhf_utils.WorkerExtension")
        swap_weights(engine, network_module, new)
        assert engine.engine._llm is llm


def test_an_update_that_breaks_halfway_leaves_the_old_weights(
    monkeypatch: pytest.MonkeyPatch, llm_dir: Path, network: Any, network_module: Any, tmp_path: Path
) -> None:
    with running(NEW, llm_dir) as engine:
        network_module.write_weights(tmp_path / "model.safetensors", seed=2)
        load, calls = engine.engine._load, []

        def fails_once(model: Path) -> Any:
            calls.append(model)
            if len(calls) == 1:
                raise SettingsError("out of memory")
            return load(model)

        monkeypatch.setattr(engine.engine, "_load", fails_once)
        error = engine.control(Control(ControlOp.UPDATE_WEIGHTS, 5, str(tmp_path))).error
        sender = engine.ask(request())
    assert error == "update_weights: out of memory; version 0 is in force again"
    assert sender.last("weight_version") == 0
    assert sender.log_probs == pytest.approx(raw_log_probs(network, PROMPT, sender.all_ids), abs=1e-5)


def test_an_engine_out_of_order_says_so_until_weights_bring_it_back(
    monkeypatch: pytest.MonkeyPatch, llm_dir: Path
) -> None:
    def fails(model: Path) -> Any:
        raise SettingsError("no GPU left")

    same = Control(ControlOp.UPDATE_WEIGHTS, 0, str(llm_dir))
    with running(NEW, llm_dir) as engine:
        load = engine.engine._load
        monkeypatch.setattr(engine.engine, "_load", fails)
        engine.engine._llm._executor.crash()
        while not any("out of order" in warning for warning in engine.warnings):
            engine.control(Control(ControlOp.STATS))
        error = engine.ask(request()).error
        monkeypatch.setattr(engine.engine, "_load", load)
        assert engine.control(same).error is None
        assert engine.ask(request()).finish_reason == "length"
    assert error is not None and "out of order" in error and "no GPU left" in error


@pytest.mark.parametrize("flavour", [OLD, NEW])
def test_an_engine_that_ends_a_reply_too_soon_is_not_believed(flavour: str, llm_dir: Path) -> None:
    """Its limit is below ours: what it gave is not a whole reply."""
    with running(flavour, llm_dir) as engine:
        engine.engine._llm._executor._max_seq_len = 10
        error = engine.ask(request(max_tokens=100)).error
    assert error is not None and "ended the reply after 6 of 100 tokens (length)" in error


def test_what_is_live_fails_when_the_server_closes(llm_dir: Path) -> None:
    with running(OLD, llm_dir) as engine:
        _, sender = engine.begin(request(max_tokens=250))
        assert sender.begun.wait(ANSWER_S)
    assert sender.done.wait(ANSWER_S)
    assert sender.error == "the server is shutting down" or sender.finish_reason == "length"
