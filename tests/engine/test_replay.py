"""Sending turns to an engine again: right samples pass on any engine, wrong ones do not, and nothing passes unseen."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineFailed
from engine.replay import ReplayOptions, as_json, main, replay_samples
from engine.replay_report import render
from engine.types import Guide, GuideKind, LogProbMode, SamplingParams
from tests.engine.language_model import VOCAB, LanguageModel, sample_of

Json = dict[str, Any]
PROCESSED = {"mode": LogProbMode.PROCESSED}


async def replayed(model: LanguageModel, samples: list[Json], **options: Any) -> Any:
    return await replay_samples(model, samples, ReplayOptions(**options))


@pytest.mark.parametrize(
    ("model", "sampling"),
    [
        ({}, {}),
        ({}, {"temperature": 0.7, "top_p": 0.9}),
        ({}, {"temperature": 0.0}),
        ({}, {"presence_penalty": 0.0, "min_tokens": 40}),
        (PROCESSED, {"temperature": 0.7, "top_p": 0.9}),
        (PROCESSED, {"temperature": 1.3, "top_k": 5}),
    ],
)
async def test_where_seeds_repeat_every_token_is_compared(model: Json, sampling: Json) -> None:
    engine = LanguageModel(**model)
    report = await replayed(engine, [sample_of(engine, **sampling), sample_of(engine, turns=1, **sampling)])
    assert report.failures == ()
    assert (report.turns, report.repeated, report.same_ids) == (4, 4, 4)
    assert (report.compared_tokens, report.trained_tokens, report.not_compared) == (48, 48, {})
    assert (report.probed, report.contradicted) == (0, 0)
    assert report.max_difference < 1e-6
    assert [control.caught for control in report.controls] == [True, True]
    assert {request.session for request in engine.requests} == {"rollserve-verify"}
    assert set(report.differences.by_turn) == {"1", "2", "3"}
    assert set(report.differences.by_version) == {"3"}


def continued(engine: LanguageModel, at: tuple[int, ...], tokens: int = 12, **sampling: Any) -> Json:
    """A turn that was continued after so many tokens, each time with a seed of its own."""
    sample = sample_of(engine, turns=1, tokens=tokens, **sampling)
    (turn,) = sample["metadata"]["turns"]
    parts = [[0, turn["seed"]], *([start, 7000 + start] for start in at)]
    prompt = sample["tokens"][:-tokens]
    ids: list[int] = []
    log_probs: list[float] = []
    for (start, seed), end in zip(parts, [*at, tokens], strict=True):
        params = SamplingParams(**{**sampling, "seed": seed})
        new, new_log_probs = engine.sample([*prompt, *ids], end - start, params)
        ids += new
        log_probs += np.float32(new_log_probs).tolist()
    turn["segments"] = parts
    return {**sample, "tokens": [*prompt, *ids], "rollout_log_probs": log_probs}


@pytest.mark.parametrize("at", [(1,), (5,), (11,), (3, 4, 9)])
async def test_a_continued_turn_is_asked_for_in_its_segments(at: tuple[int, ...]) -> None:
    engine = LanguageModel()
    sample = continued(engine, at, temperature=0.8)
    report = await replayed(engine, [sample], same_ids=True)
    assert report.failures == ()
    assert (report.same_ids, report.compared_tokens, report.probed) == (1, 12, 0)
    asked = engine.requests[: len(at) + 1]
    assert [request.sampling.seed for request in asked] == [1001, *(7000 + start for start in at)]
    assert [request.prompt_ids.size for request in asked] == [7, *(7 + start for start in at)]
    assert sum(request.max_tokens for request in asked) == 12


async def test_a_continued_turn_with_a_wrong_seed_does_not_come_out() -> None:
    engine = LanguageModel()
    sample = continued(engine, (5,))
    sample["metadata"]["turns"][0]["segments"][1][1] += 1
    report = await replayed(engine, [sample], same_ids=True, probes=0)
    assert report.same_ids == 0
    assert 5 <= report.compared_tokens < 12


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([[0, 1], [0, 2]], "not .start, seed. in order"),
        ([[0, 1], [12, 2]], "not .start, seed. in order"),
        ([[0, -1]], "not .start, seed. in order"),
        ([[0, 1, 2]], "not .start, seed. in order"),
        ("x", "not .start, seed. in order"),
        ([[1, 1]], "begins at 1, not at the turn's 0"),
    ],
)
async def test_segments_that_cannot_be_are_a_fault_of_the_sample(segments: Any, words: str) -> None:
    engine = LanguageModel()
    sample = sample_of(engine, turns=1)
    sample["metadata"]["turns"][0]["segments"] = segments
    report = await replayed(engine, [sample])
    assert re.search(words, report.failures[0])


@pytest.mark.parametrize("mode", LogProbMode)
async def test_where_seeds_do_not_repeat_likely_tokens_are_asked_for(mode: LogProbMode) -> None:
    sample = sample_of(LanguageModel(mode), turns=6, temperature=0.8)
    engine = LanguageModel(mode, repeats=False)
    report = await replayed(engine, [sample], probes=3)
    assert report.failures == ()
    assert report.same_ids == 0
    assert report.probed > 6
    assert report.contradicted == 0
    assert 0 < report.compared_tokens < report.trained_tokens == 72
    assert report.compared_tokens + sum(report.not_compared.values()) == 72
    assert report.max_difference < 1e-6
    assert [control.caught for control in report.controls] == [True, True]


FEW = Guide(GuideKind.REGEX, json.dumps(list(range(0, VOCAB, 7))))


@pytest.mark.parametrize("mode", LogProbMode)
async def test_a_guided_turn_is_asked_for_again_under_its_guide(mode: LogProbMode) -> None:
    engine = LanguageModel(mode, guides=frozenset({GuideKind.REGEX}))
    sample = sample_of(engine, guide=FEW, min_tokens=3)
    report = await replayed(engine, [sample])
    assert report.failures == ()
    assert (report.same_ids, report.compared_tokens, report.not_compared) == (3, 36, {})
    assert {request.guide for request in engine.requests} == {FEW}


async def test_the_last_token_of_a_guided_turn_is_taken_for_its_end_token() -> None:
    engine = LanguageModel(guides=frozenset({GuideKind.REGEX}))
    sample = sample_of(engine, turns=1, tokens=4, guide=FEW)
    sample["tokens"][-1] = VOCAB - 1
    await replayed(engine, [sample], probes=0)
    assert engine.requests[0].end_ids == (VOCAB - 1,)
    plain = sample_of(engine, turns=1, tokens=4)
    await replayed(engine, [plain], probes=0)
    assert engine.requests[-1].end_ids == ()


@pytest.mark.parametrize("mode", LogProbMode)
async def test_an_engine_without_the_guide_is_not_asked_for_the_turn(mode: LogProbMode) -> None:
    """Of raw log probs likely tokens can still be asked for; those behind a mask cannot be compared at all."""
    guided = sample_of(LanguageModel(mode), turns=6, guide=FEW, temperature=0.5)
    plain = LanguageModel(mode)
    report = await replayed(plain, [guided, sample_of(plain)], probes=3)
    assert report.failures == ()
    assert (report.turns, report.repeated, report.same_ids) == (9, 3, 3)
    assert report.not_compared == {"guided, which the engine does not offer": 72 - report.probed}
    assert report.probed == 0 or mode is LogProbMode.RAW


async def test_a_file_without_seeds_is_checked_token_by_token() -> None:
    engine = LanguageModel()
    sample = sample_of(engine, turns=6)
    for turn in sample["metadata"]["turns"]:
        del turn["seed"]
    report = await replayed(engine, [sample])
    assert report.failures == ()
    assert (report.repeated, report.same_ids) == (0, 0)
    assert report.probed == report.compared_tokens > 6


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("place", [0, 5, 6])
async def test_a_changed_prompt_is_found(repeats: bool, place: int) -> None:
    sample = sample_of(LanguageModel(), turns=4)
    sample["tokens"][place] = (sample["tokens"][place] + 1) % VOCAB
    report = await replayed(LanguageModel(repeats=repeats), [sample])
    assert not report.ok
    assert report.contradicted or report.max_difference > 0.1


@pytest.mark.parametrize("repeats", [True, False])
async def test_weights_that_are_not_those_that_sampled_are_found(repeats: bool) -> None:
    """The log probs are all off by a little, as after an update that nobody noted."""
    sample = sample_of(LanguageModel(), turns=4)
    report = await replayed(LanguageModel(repeats=repeats, shift=-0.02), [sample])
    assert (
        f"{report.compared_tokens} of {report.compared_tokens} log probs differ by more than 0.001" in report.failures
    )
    assert report.max_difference == pytest.approx(0.02, abs=1e-4)


async def test_one_wrong_log_prob_is_found() -> None:
    engine = LanguageModel()
    sample = sample_of(engine)
    sample["rollout_log_probs"][18] -= 0.25
    report = await replayed(engine, [sample])
    assert "1 of 36 log probs differ by more than 0.001" in report.failures
    assert report.differences.by_turn["2"].max == pytest.approx(0.25, abs=1e-4)
    assert report.differences.by_turn["1"].max < 1e-6


async def test_tokens_of_other_weights_are_told_and_not_compared() -> None:
    engine = LanguageModel()
    sample = sample_of(engine)
    sample["metadata"]["turns"][1]["versions"] = [[16, 20, 2], [20, 28, 3]]
    report = await replayed(engine, [sample])
    assert report.failures == ()
    assert report.not_compared == {"other weights than the engine's": 4}
    newer = await replayed(LanguageModel(weight_version=4), [sample])
    assert newer.compared_tokens == 0
    assert newer.failures == ("no log prob could be compared that says anything",)


async def test_what_does_not_train_is_not_compared() -> None:
    engine = LanguageModel()
    sample = sample_of(engine)
    sample["loss_mask"][3], sample["rollout_log_probs"][3] = 0, 0.0
    sample["metadata"]["turns"][1]["trained"] = False
    sample["loss_mask"][16:28] = [0] * 12
    sample["rollout_log_probs"][16:28] = [0.0] * 12
    report = await replayed(engine, [sample])
    assert report.failures == ()
    assert (report.turns, report.compared_tokens, report.trained_tokens) == (2, 23, 23)


async def test_an_engine_whose_log_probs_are_of_another_kind_is_not_compared() -> None:
    report = await replayed(LanguageModel(LogProbMode.PROCESSED), [sample_of(LanguageModel())])
    assert report.failures == ("no log prob could be compared that says anything",)
    assert report.not_compared == {"the turn was not answered, or its log probs are of another kind": 36}


async def test_processed_log_probs_under_penalties_are_compared_only_where_the_turn_repeats() -> None:
    sample = sample_of(LanguageModel(**PROCESSED), turns=6)
    for turn in sample["metadata"]["turns"][1:]:
        turn["frequency_penalty"] = 0.5
    report = await replayed(LanguageModel(repeats=False, **PROCESSED), [sample])
    assert report.probed <= 4
    assert report.ok


async def test_greedy_processed_log_probs_say_nothing() -> None:
    engine = LanguageModel(**PROCESSED)
    sample = sample_of(engine, temperature=0.0)
    report = await replayed(engine, [sample])
    assert (report.same_ids, report.max_difference) == (3, 0.0)
    assert report.failures == ("no log prob could be compared that says anything",)


async def test_an_engine_that_ignores_the_prompt_is_told_by_the_control() -> None:
    engine = LanguageModel(ignores_prompt=True)
    sample = sample_of(engine, turns=1)
    ids, log_probs = engine.sample([], 12, engine_params(sample))
    sample["tokens"][7:], sample["rollout_log_probs"] = ids, np.float32(log_probs).tolist()
    report = await replayed(engine, [sample])
    assert report.max_difference < 1e-6
    assert report.failures == ("negative control not caught: one prompt id changed",)


def engine_params(sample: Json) -> Any:
    from engine.sample_rows import read_sample

    return read_sample(sample, VOCAB).spans[0].sampling


async def test_a_wide_tolerance_has_a_control_beyond_it() -> None:
    engine = LanguageModel()
    report = await replayed(engine, [sample_of(engine)], tolerance=0.05)
    assert report.failures == ()
    assert report.controls[1].name == "one log prob off by 0.1"


async def test_same_ids_can_be_demanded() -> None:
    sample = sample_of(LanguageModel(), turns=4)
    assert (await replayed(LanguageModel(), [sample], same_ids=True)).ok
    report = await replayed(LanguageModel(repeats=False), [sample], same_ids=True)
    assert report.failures == ("4 of 4 turns did not come out the same",)


async def test_a_turn_that_fails_is_named() -> None:
    sample = sample_of(LanguageModel())
    report = await replayed(LanguageModel(error=EngineFailed("it broke"), good=2), [sample], concurrency=1)
    assert report.failures[:2] == ("sample 0, turn 3: it broke", "negative controls: it broke")
    assert (report.compared_tokens, sum(report.not_compared.values())) == (24, 12)
    report = await replayed(LanguageModel(error=EngineFailed("it broke")), [sample])
    assert report.failures[:3] == tuple(f"sample 0, turn {turn}: it broke" for turn in (1, 2, 3))


async def test_a_bad_sample_is_a_failure_and_the_rest_is_checked() -> None:
    engine = LanguageModel()
    bad = copy.deepcopy(sample_of(engine)) | {"response_length": 1}
    report = await replayed(engine, [bad, sample_of(engine)])
    assert report.failures[0].startswith("sample 0: response_length is 1")
    assert report.compared_tokens == 36


async def test_no_samples_is_a_failure() -> None:
    report = await replayed(LanguageModel(), [])
    assert report.failures == ("no log prob could be compared that says anything",)


async def test_the_report_as_text_and_as_json() -> None:
    engine = LanguageModel()
    report = await replayed(engine, [sample_of(engine)])
    lines = render(report).splitlines()
    assert lines[0] == "3 turns sent to fifty again; tolerance 0.001"
    assert lines[1] == "with their seeds: 3 of 3 gave the same ids"
    assert lines[-1].startswith("max |log prob difference| ")
    document = json.loads(as_json(report))
    assert (document["ok"], document["same_ids"], document["differences"]["by_turn"]["1"]["tokens"]) == (True, 3, 12)
    empty = await replayed(engine, [])
    assert json.loads(as_json(empty))["max_difference"] is None


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.jsonl"), "--triton", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("FAILED: ")
