"""The loop over the LLM API's stand-in, in two versions of its surface: tokens, ends and the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common.control import Control, ControlOp
from common.guides import Guide

from tests.model_repo.llm_engines import ANSWER_S, PROMPT, Engine, raw_log_probs, request, running
from tests.support.llm_api_stand_in import NEW, OLD


@pytest.fixture(scope="module", params=[OLD, NEW])
def engine(request: pytest.FixtureRequest, llm_dir: Path) -> Iterator[Engine]:
    with running(request.param, llm_dir) as engine:
        yield engine


@pytest.fixture(scope="module")
def new_engine(llm_dir: Path) -> Iterator[Engine]:
    with running(NEW, llm_dir) as engine:
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


def test_what_comes_after_the_end_in_one_update_is_dropped(llm_dir: Path, engine: Engine, tmp_path: Path) -> None:
    """Several tokens come at once with a stream interval or with speculation."""
    ids = engine.ask(request(temperature=0.0)).all_ids
    settings = tmp_path / "engine.yaml"
    settings.write_text("stream_interval: 5\n")
    with running(NEW, llm_dir, engine_yaml=str(settings)) as joining:
        whole = joining.ask(request(temperature=0.0))
        sender = joining.ask(request(temperature=0.0, stop_words=(tuple(ids[1:3]),)))
        assert joining.engine._llm._executor.stream_interval == 5
    assert (whole.all_ids, len(whole.log_probs)) == (ids, 12)
    assert (sender.all_ids, sender.finish_reason, len(sender.log_probs)) == (ids[:3], "stop", 3)


def test_processed_log_probs_are_of_what_was_sampled_from(llm_dir: Path, network: Any) -> None:
    with running(NEW, llm_dir, log_prob_mode="processed") as engine:
        sender = engine.ask(request(temperature=0.5, max_tokens=1))
    wanted = (network.logits(PROMPT) / 0.5).log_softmax(-1)[sender.all_ids[0]].item()
    assert sender.log_probs == [pytest.approx(wanted, abs=1e-5)]


def test_a_version_without_the_sampled_tokens_log_prob_says_what_to_serve_with(llm_dir: Path) -> None:
    with running(OLD, llm_dir) as engine:
        executor = engine.engine._llm._executor
        executor._traits = replace(executor._traits, logprobs_have_sampled=False)
        error = engine.ask(request(max_tokens=60)).error
    assert error is not None and "sampler_type: TRTLLMSampler in engine_yaml and log_prob_mode=processed" in error


def test_the_cpp_sampler_has_log_probs_of_what_was_sampled_from_or_refuses(
    llm_dir: Path, network: Any, tmp_path: Path
) -> None:
    settings = tmp_path / "engine.yaml"
    settings.write_text("sampler_type: TRTLLMSampler\n")
    with running(OLD, llm_dir, engine_yaml=str(settings), log_prob_mode="processed") as engine:
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


def test_penalties_are_refused_by_name_where_the_sampler_drops_them(llm_dir: Path) -> None:
    with running(OLD, llm_dir) as engine:
        error = engine.ask(request(presence_penalty=0.5)).error
    assert error is not None and error.startswith("invalid request: presence_penalty: ") and "1.2.1" in error


def test_penalties_reach_a_sampler_that_has_them(llm_dir: Path) -> None:
    with running(NEW, llm_dir, log_prob_mode="processed") as engine:
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
    assert engine.control(Control(ControlOp.FLUSH)).error is None
    assert engine.ask(asked).last("cached_tokens") == 0


def test_a_guide_needs_the_engines_own_end_among_the_requests(llm_dir: Path) -> None:
    with running(NEW, llm_dir, guided_decoding="regex", log_prob_mode="processed") as engine:
        error = engine.ask(request(guide=Guide("regex", "a"), end_ids=(9,))).error
    assert error is not None and "guided reply with token 2" in error


def test_an_adapter_changes_the_log_probs_and_shares_no_blocks(
    network_module: Any, llm_dir: Path, network: Any, tmp_path: Path
) -> None:
    folder = network_module.write_adapter(tmp_path / "adapter", seed=3)
    prompt = list(range(64))
    with running(NEW, llm_dir, loras=f"fine={folder}") as engine:
        plain = request(prompt_ids=np.array(prompt, np.int32), max_tokens=8)
        engine.ask(plain)
        sender = engine.ask(request(prompt_ids=np.array(prompt, np.int32), max_tokens=8, lora="fine"))
    adapter = network_module.read_adapter(folder)
    first = network.logits(prompt, adapter).log_softmax(-1)[sender.all_ids[0]].item()
    assert (sender.last("cached_tokens"), sender.log_probs[0]) == (0, pytest.approx(first, abs=1e-5))
