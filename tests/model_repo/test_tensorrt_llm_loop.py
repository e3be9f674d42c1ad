"""The loop over the LLM API's stand-in, in two versions of its surface: tokens, ends, weights, and what breaks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common.control import Control, ControlOp
from common.guides import Guide

from model_repo.tensorrt_llm import ipc_weights, llm_engine
from model_repo.tensorrt_llm.settings import SettingsError
from tests.model_repo.doubles import make_request
from tests.model_repo.llm_engines import ANSWER_S, Engine, raw_log_probs, running
from tests.support.llm_api_stand_in import NEW, OLD, installed

PROMPT = [5, 6, 7, 8]
FLUSH = Control(ControlOp.FLUSH)


def request(**changes: Any) -> Any:
    defaults: dict[str, Any] = {"prompt_ids": np.array(PROMPT, np.int32), "end_ids": (), "max_tokens": 12}
    return make_request(**(defaults | changes))


@pytest.fixture(scope="module")
def network_module() -> Iterator[Any]:
    with installed(NEW):
        yield sys.modules["stand_in_network"]


@pytest.fixture(scope="module")
def model_dir(network_module: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network_module.write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "first", seed=1)


@pytest.fixture(scope="module")
def network(network_module: Any, model_dir: Path) -> Any:
    return network_module.Network(model_dir)


@pytest.fixture(scope="module", params=[OLD, NEW])
def engine(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[Engine]:
    with running(request.param, model_dir) as engine:
        yield engine


@pytest.fixture(scope="module")
def new_engine(model_dir: Path) -> Iterator[Engine]:
    with running(NEW, model_dir) as engine:
        yield engine


def test_log_probs_are_those_of_the_raw_logits(engine: Engine, network: Any) -> None:
    sender = engine.ask(request(temperature=0.7, top_p=0.9, top_k=20, max_tokens=30))
    assert sender.finish_reason == "length" and len(sender.all_ids) == 30
    assert sender.log_probs == pytest.approx(raw_log_probs(network, PROMPT, sender.all_ids), abs=1e-5)


def test_greedy_takes_the_best_token_and_keeps_its_log_prob(engine: Engine, network: Any) -> None:
    sender = engine.ask(request(temperature=0.0))
    ids = list(PROMPT)
    for token in sender.all_ids:
        assert token == int(network.logits(ids).argmax())
        ids.append(token)
    assert all(value < 0 for value in sender.log_probs)


def test_an_end_token_stays_with_its_log_prob(engine: Engine, network: Any) -> None:
    first = engine.ask(request(temperature=0.0)).all_ids
    for ends in [(first[3],), (63, first[3])]:
        sender = engine.ask(request(temperature=0.0, end_ids=ends))
        cut = first.index(first[3]) + 1
        assert (sender.all_ids, sender.finish_reason) == (first[:cut], "stop")
        assert sender.log_probs == pytest.approx(raw_log_probs(network, PROMPT, first[:cut]), abs=1e-5)


def test_a_longer_stop_word_ends_the_reply_and_frees_the_engine(engine: Engine) -> None:
    first = engine.ask(request(temperature=0.0)).all_ids
    sender = engine.ask(request(temperature=0.0, stop_words=(tuple(first[2:4]),), max_tokens=200))
    assert (sender.all_ids, sender.finish_reason) == (first[:4], "stop")
    engine.engine._llm._executor.call(lambda: None)
    assert not engine.engine._llm._executor._live


def test_what_comes_after_the_end_in_one_update_is_dropped(model_dir: Path, engine: Engine, tmp_path: Path) -> None:
    """Several tokens come at once with a stream interval or with speculation."""
    ids = engine.ask(request(temperature=0.0)).all_ids
    settings = tmp_path / "engine.yaml"
    settings.write_text("stream_interval: 5\n")
    with running(NEW, model_dir, engine_yaml=str(settings)) as joining:
        whole = joining.ask(request(temperature=0.0))
        sender = joining.ask(request(temperature=0.0, stop_words=(tuple(ids[1:3]),)))
        assert joining.engine._llm._executor.stream_interval == 5
    assert (whole.all_ids, len(whole.log_probs)) == (ids, 12)
    assert (sender.all_ids, sender.finish_reason, len(sender.log_probs)) == (ids[:3], "stop", 3)


def test_processed_log_probs_are_of_what_was_sampled_from(model_dir: Path, network: Any) -> None:
    with running(NEW, model_dir, log_prob_mode="processed") as engine:
        sender = engine.ask(request(temperature=0.5, max_tokens=1))
    wanted = (network.logits(PROMPT) / 0.5).log_softmax(-1)[sender.all_ids[0]].item()
    assert sender.log_probs == [pytest.approx(wanted, abs=1e-5)]


def test_a_version_without_the_sampled_tokens_log_prob_says_what_to_serve_with(model_dir: Path) -> None:
    with running(OLD, model_dir) as engine:
        executor = engine.engine._llm._executor
        executor._traits = replace(executor._traits, logprobs_have_sampled=False)
        error = engine.ask(request(max_tokens=60)).error
    assert error is not None and "sampler_type: TRTLLMSampler in engine_yaml and log_prob_mode=processed" in error


def test_the_cpp_sampler_has_log_probs_of_what_was_sampled_from_or_refuses(
    model_dir: Path, network: Any, tmp_path: Path
) -> None:
    settings = tmp_path / "engine.yaml"
    settings.write_text("sampler_type: TRTLLMSampler\n")
    with running(OLD, model_dir, engine_yaml=str(settings), log_prob_mode="processed") as engine:
        warm, greedy, cut = (
            engine.ask(request(**how)) for how in ({"temperature": 0.5}, {"temperature": 0.0}, {"top_p": 0.9})
        )
    wanted = (network.logits(PROMPT) / 0.5).log_softmax(-1)[warm.all_ids[0]].item()
    assert warm.log_probs[0] == pytest.approx(wanted, abs=1e-5)
    assert (greedy.all_ids[0], set(greedy.log_probs)) == (int(network.logits(PROMPT).argmax()), {0.0})
    assert cut.error is not None and cut.error.startswith(
        "invalid request: runtime_top_p: TRTLLMSampler takes log probs before"
    )


def test_min_tokens_holds_back_every_end_and_leaves_raw_log_probs_alone(engine: Engine, network: Any) -> None:
    sender = engine.ask(request(end_ids=tuple(range(64)), min_tokens=6, max_tokens=20))
    assert (len(sender.all_ids), sender.finish_reason) == (7, "stop")
    assert sender.log_probs == pytest.approx(raw_log_probs(network, PROMPT, sender.all_ids), abs=1e-5)


def test_min_tokens_without_an_end_bans_no_token(engine: Engine, network: Any) -> None:
    """The sampler bans the index ``end_id``: -1, were it sent, would be the last token."""
    prompt = next([a, b] for a in range(64) for b in range(64) if int(network.logits([a, b]).argmax()) == 63)
    sender = engine.ask(request(prompt_ids=np.array(prompt, np.int32), temperature=0.0, min_tokens=12))
    assert sender.all_ids[0] == 63


def test_a_seed_repeats_where_the_version_has_seeds_by_request(new_engine: Engine) -> None:
    same = [new_engine.ask(request(seed=3, max_tokens=30)).all_ids for _ in range(2)]
    assert same[0] == same[1] != new_engine.ask(request(seed=4, max_tokens=30)).all_ids
    assert new_engine.ask(request(seed=2**64 - 1)).error is None


def test_penalties_are_refused_by_name_where_the_sampler_drops_them(model_dir: Path) -> None:
    with running(OLD, model_dir) as engine:
        error = engine.ask(request(presence_penalty=0.5)).error
    assert error is not None and error.startswith("invalid request: presence_penalty: ") and "1.2.1" in error


def test_penalties_reach_a_sampler_that_has_them(model_dir: Path) -> None:
    with running(NEW, model_dir, log_prob_mode="processed") as engine:
        sender = engine.ask(request(frequency_penalty=1000.0, temperature=0.0, max_tokens=30))
    assert len(set(sender.all_ids)) == 30


def test_a_cancelled_request_ends_at_once(engine: Engine) -> None:
    generation, sender = engine.begin(request(max_tokens=250))
    assert sender.begun.wait(ANSWER_S)
    generation.mark_cancelled()
    engine.loop.cancel(generation)
    assert sender.done.wait(ANSWER_S) and sender.finish_reason == "cancelled"


def test_a_request_that_is_cancelled_before_it_begins_ends_too(engine: Engine) -> None:
    generation, sender = engine.begin(request(max_tokens=250))
    generation.mark_cancelled()
    engine.loop.cancel(generation)
    assert sender.done.wait(ANSWER_S) and sender.finish_reason == "cancelled"


def test_reused_blocks_are_counted_and_forgotten_by_a_flush(engine: Engine) -> None:
    prompt = np.arange(64, dtype=np.int32)[::-1].copy()
    asked = request(prompt_ids=prompt, temperature=0.0, max_tokens=40)
    engine.ask(asked)
    assert engine.ask(asked).last("cached_tokens") == 32
    assert engine.control(FLUSH).error is None
    assert engine.ask(asked).last("cached_tokens") == 0


@pytest.mark.parametrize("flavour", [OLD, NEW])
def test_new_weights_sample_under_their_version_and_reuse_nothing_old(
    flavour: str, model_dir: Path, network_module: Any, tmp_path: Path
) -> None:
    with running(flavour, model_dir) as engine:
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


def test_weights_wait_for_live_requests(new_engine: Engine, model_dir: Path) -> None:
    generation, sender = new_engine.begin(request(max_tokens=250))
    assert sender.begun.wait(ANSWER_S)
    error = new_engine.control(Control(ControlOp.UPDATE_WEIGHTS, 9, str(model_dir))).error
    new_engine.loop.cancel(generation)
    assert sender.done.wait(ANSWER_S)
    assert error == "update_weights: 1 requests are live; end or cancel them first"


def test_an_engine_whose_workers_are_gone_is_loaded_anew(model_dir: Path) -> None:
    with running(NEW, model_dir) as engine:
        _, sender = engine.begin(request(max_tokens=250))
        assert sender.begun.wait(ANSWER_S)
        engine.engine._llm._executor.crash()
        assert sender.done.wait(ANSWER_S)
        assert sender.error is None or "workers are gone" in sender.error
        assert engine.ask(request()).finish_reason == "length"
        assert any("workers are gone" in warning for warning in engine.warnings)


def test_a_guide_needs_the_engines_own_end_among_the_requests(model_dir: Path) -> None:
    with running(NEW, model_dir, guided_decoding="regex", log_prob_mode="processed") as engine:
        error = engine.ask(request(guide=Guide("regex", "a"), end_ids=(9,))).error
    assert error is not None and "guided reply with token 2" in error


def test_an_adapter_changes_the_log_probs_and_shares_no_blocks(
    network_module: Any, model_dir: Path, network: Any, tmp_path: Path
) -> None:
    folder = network_module.write_adapter(tmp_path / "adapter", seed=3)
    prompt = list(range(64))
    with running(NEW, model_dir, loras=f"fine={folder}") as engine:
        plain = request(prompt_ids=np.array(prompt, np.int32), max_tokens=8)
        engine.ask(plain)
        sender = engine.ask(request(prompt_ids=np.array(prompt, np.int32), max_tokens=8, lora="fine"))
    adapter = network_module.read_adapter(folder)
    first = network.logits(prompt, adapter).log_softmax(-1)[sender.all_ids[0]].item()
    assert (sender.last("cached_tokens"), sender.log_probs[0]) == (0, pytest.approx(first, abs=1e-5))


def test_weights_go_into_running_workers_where_there_is_ray(
    monkeypatch: pytest.MonkeyPatch, network_module: Any, model_dir: Path, tmp_path: Path
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
    with running(NEW, model_dir, engine_yaml=str(settings), weight_update="in_place") as engine:
        llm = engine.engine._llm
        assert llm.args["ray_worker_extension_cls"].endswith("rlhf_utils.WorkerExtension")
        swap_weights(engine, network_module, new)
        assert engine.engine._llm is llm


def test_an_update_that_breaks_halfway_leaves_the_old_weights(
    monkeypatch: pytest.MonkeyPatch, model_dir: Path, network: Any, network_module: Any, tmp_path: Path
) -> None:
    with running(NEW, model_dir) as engine:
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
    monkeypatch: pytest.MonkeyPatch, model_dir: Path
) -> None:
    def fails(model: Path) -> Any:
        raise SettingsError("no GPU left")

    same = Control(ControlOp.UPDATE_WEIGHTS, 0, str(model_dir))
    with running(NEW, model_dir) as engine:
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
def test_an_engine_that_ends_a_reply_too_soon_is_not_believed(flavour: str, model_dir: Path) -> None:
    """Its limit is below ours: what it gave is not a whole reply."""
    with running(flavour, model_dir) as engine:
        engine.engine._llm._executor._max_seq_len = 10
        error = engine.ask(request(max_tokens=100)).error
    assert error is not None and "ended the reply after 6 of 100 tokens (length)" in error


def test_what_is_live_fails_when_the_server_closes(model_dir: Path) -> None:
    with running(OLD, model_dir) as engine:
        _, sender = engine.begin(request(max_tokens=250))
        assert sender.begun.wait(ANSWER_S)
    assert sender.done.wait(ANSWER_S)
    assert sender.error == "the server is shutting down" or sender.finish_reason == "length"
