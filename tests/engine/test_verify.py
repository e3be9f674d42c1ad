"""Re-scoring: right samples pass, wrong ones do not, and a verification that cannot tell fails."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine import rescore
from engine.differences import Breakdown, Measured
from engine.rescore import PlainModel
from engine.sample_rows import SampleError, SampleRow, read_sample
from engine.verify import VerifyReport, main, read_jsonl, render, verify_samples, verify_with
from engine.weights_by_version import read_weights

VOCAB = 97
PROMPT = [5, 17, 44, 3, 90, 61, 8]
OUTPUT = [12, 80, 33, 7, 2]
CONTEXT = [50, 51]

Json = dict[str, Any]


@pytest.fixture(scope="module")
def model() -> Any:
    """A small Llama with random weights, large enough that its predictions depend on the prompt."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.5,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def model_dir(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(model_dir: Path) -> PlainModel:
    return PlainModel(model_dir)


def verify(scorer: Any, samples: list[Json], tolerance: float = 1e-3) -> VerifyReport:
    return verify_with(scorer, samples, tolerance)


def logits_after(model: Any, ids: list[int]) -> np.ndarray:
    """float64 [vocabulary]: what follows ``ids``, which are a pass of their own."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].double().numpy()


def processed_log_prob(logits: np.ndarray, token: int, temperature: float, top_k: int, top_p: float) -> float:
    """The definition, written out with loops: scale, keep the k largest, keep the smallest set of mass top_p, normalise."""
    weights = {i: float(np.exp(x / temperature - np.max(logits) / temperature)) for i, x in enumerate(logits)}
    kept = sorted(weights, key=lambda i: -weights[i])[: top_k or len(weights)]
    total = sum(weights[i] for i in kept)
    nucleus: list[int] = kept if top_p == 1 else []
    while top_p < 1 and sum(weights[i] for i in nucleus) / total < top_p:
        nucleus.append(kept[len(nucleus)])
    if token not in nucleus:
        return -np.inf
    return float(np.log(weights[token] / sum(weights[i] for i in nucleus)))


def sample_with(model: Any, **sampling: Any) -> Json:
    """Two turns around two context tokens; the log probs are the model's own. Tokens can be sampled as ``sampling`` says."""
    mode = sampling.get("log_prob_mode", "raw")
    turn = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "log_prob_mode": mode} | sampling
    tokens, recorded = list(PROMPT), []
    for place, wanted in enumerate(OUTPUT + CONTEXT + OUTPUT):
        logits = logits_after(model, tokens)
        is_output = place < 5 or place >= 7
        if is_output and mode == "processed":
            wanted = int(np.argsort(-logits)[place % 2 if turn["temperature"] else 0])
            greedy = turn["temperature"] == 0
            score = (
                0.0 if greedy else processed_log_prob(logits, wanted, turn["temperature"], turn["top_k"], turn["top_p"])
            )
        else:
            score = processed_log_prob(logits, wanted, 1.0, 0, 1.0) if is_output else 0.0
        tokens.append(wanted)
        recorded.append(score)
    return {
        "tokens": tokens,
        "response_length": 12,
        "loss_mask": [1] * 5 + [0] * 2 + [1] * 5,
        "rollout_log_probs": recorded,
        "metadata": {"turns": [turn | {"start": 0, "end": 5, "trained": True}, turn | {"start": 7, "end": 12}]},
    }


@pytest.fixture(scope="module")
def sample(model: Any) -> Json:
    return sample_with(model)


@pytest.fixture()
def altered(sample: Json) -> Json:
    return copy.deepcopy(sample)


def test_the_models_own_log_probs_pass_and_both_controls_are_caught(scorer: PlainModel, sample: Json) -> None:
    report = verify(scorer, [sample, sample])
    assert report.failures == ()
    assert (report.samples, report.trained_tokens, report.modes) == (2, 20, {"raw": 20})
    assert report.max_difference < 1e-5
    everything = report.differences.all
    assert everything.mean <= everything.quantiles["p99"] <= everything.max == report.max_difference
    assert everything.tokens == 20
    assert [control.caught for control in report.controls] == [True, True]
    assert report.controls[0].difference > 0.1
    assert report.controls[1].difference == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.7, "top_k": 3},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5},
        {"temperature": 1.0},
    ],
)
def test_processed_log_probs_equal_the_definition(model: Any, scorer: PlainModel, sampling: Json) -> None:
    report = verify(scorer, [sample_with(model, log_prob_mode="processed", **sampling)])
    assert report.failures == ()
    assert report.max_difference < 1e-5


def test_differences_are_told_by_weight_version_and_by_turn(scorer: PlainModel, sample: Json, altered: Json) -> None:
    turns = altered["metadata"]["turns"]
    turns[0] |= {"turn_index": 1, "versions": [[0, 2, 4], [2, 5, 6]]}
    turns[1] |= {"turn_index": 2, "versions": [[7, 12, 6]]}
    altered["rollout_log_probs"][1] -= 0.5
    altered["rollout_log_probs"][9] -= 0.25
    found = verify(scorer, [sample, altered]).differences
    assert {name: each.tokens for name, each in found.by_version.items()} == {"unknown": 10, "4": 2, "6": 8}
    assert {name: each.tokens for name, each in found.by_turn.items()} == {"unknown": 10, "1": 5, "2": 5}
    assert [found.by_version[name].max for name in ("unknown", "4", "6")] == pytest.approx([0, 0.5, 0.25], abs=1e-4)
    assert [found.by_turn[name].max for name in ("1", "2")] == pytest.approx([0.5, 0.25], abs=1e-4)
    lines = "\n".join(found.lines())
    assert "  weight version 4: 2 tokens, mean 2.5e-01" in lines
    assert "  turn 2: 5 tokens" in lines


def test_only_the_groups_that_differ_most_are_shown() -> None:
    turns = np.repeat(np.arange(1, 31, dtype=np.int32), 2)
    measured = Measured(turns / 100, np.full(60, 3, np.int32), turns)
    lines = Breakdown.of([measured]).lines()
    assert lines[0].startswith("|log prob difference| mean 1.5e-01, p50 ")
    assert [line.split(":")[0] for line in lines[1:]] == [
        "  weight version 3",
        *(f"  turn {turn}" for turn in range(23, 31)),
        "  22 more turns differ less",
    ]


def test_long_responses_are_scored_in_blocks(monkeypatch: pytest.MonkeyPatch, scorer: PlainModel, sample: Json) -> None:
    whole = scorer.log_probs(read_sample(sample, VOCAB))
    monkeypatch.setattr(rescore, "BLOCK_TOKENS", 3)
    assert scorer.log_probs(read_sample(sample, VOCAB)) == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(
    "changed", [{"presence_penalty": 0.5}, {"frequency_penalty": -1}, {"repetition_penalty": 1.1}, {"min_tokens": 2}]
)
def test_what_ids_alone_do_not_tell_is_not_scored(model: Any, scorer: PlainModel, changed: Json) -> None:
    """Penalties change processed log probs; raw ones are taken before them."""
    processed, raw = sample_with(model, log_prob_mode="processed"), sample_with(model, **changed)
    processed["metadata"]["turns"][0] |= changed
    processed["rollout_log_probs"][:5] = [-9.0] * 5
    report = verify(scorer, [processed, raw])
    assert report.failures == ()
    assert (report.trained_tokens, report.unscored_tokens, report.modes) == (15, 5, {"processed": 5, "raw": 10})
    assert "5 more were sampled with penalties" in render(report)
    processed["metadata"]["turns"][1] |= changed
    assert verify(scorer, [processed]).failures == ("there is no trained token to verify",)


GUIDE = {"kind": "regex", "text": "a+"}


def test_a_guide_does_not_touch_raw_log_probs(model: Any, scorer: PlainModel) -> None:
    sample = sample_with(model, guide=GUIDE)
    report = verify(scorer, [sample])
    assert (report.failures, report.trained_tokens, report.masked_tokens) == ((), 10, 0)
    sample["rollout_log_probs"][0] -= 0.1
    assert not verify(scorer, [sample]).ok


def test_log_probs_behind_a_guides_mask_are_counted_and_not_compared(model: Any, scorer: PlainModel) -> None:
    masked, plain = sample_with(model, log_prob_mode="processed"), sample_with(model)
    masked["metadata"]["turns"][0]["guide"] = GUIDE
    masked["rollout_log_probs"][:5] = [-9.0] * 5
    report = verify(scorer, [masked, plain])
    assert report.failures == ()
    assert (report.trained_tokens, report.unscored_tokens, report.masked_tokens) == (15, 5, 5)
    lines = render(report).splitlines()
    assert "5 more were guided: not comparable, their log probs are those behind the mask" in lines
    assert not any("penalties" in line for line in lines)
    masked["metadata"]["turns"][1]["guide"] = GUIDE
    assert verify(scorer, [masked]).failures == ("there is no trained token to verify",)


@pytest.mark.parametrize("guide", ["regex", {"kind": "regex"}, {"kind": "telepathy", "text": ""}, {"text": "a"}, 3])
def test_a_guide_that_is_none_is_a_fault_of_the_sample(model: Any, scorer: PlainModel, guide: Any) -> None:
    report = verify(scorer, [sample_with(model, guide=guide)])
    assert "metadata.turns[0].guide is not {kind, text}" in report.failures[0]


def test_processed_log_probs_taken_for_raw_ones_fail(model: Any, scorer: PlainModel) -> None:
    sample = sample_with(model, log_prob_mode="processed", temperature=0.7, top_p=0.9)
    for turn in sample["metadata"]["turns"]:
        turn["log_prob_mode"] = "raw"
    assert not verify(scorer, [sample]).ok


def test_greedy_processed_log_probs_are_zero(model: Any, scorer: PlainModel) -> None:
    greedy = sample_with(model, log_prob_mode="processed", temperature=0.0)
    assert set(greedy["rollout_log_probs"]) == {0.0}
    assert verify(scorer, [greedy, sample_with(model)]).ok
    assert verify(scorer, [greedy]).max_difference == 0.0
    greedy["tokens"][-1] = int(np.argmin(logits_after(model, greedy["tokens"][:-1])))
    assert verify(scorer, [greedy]).max_difference == np.inf


def test_a_token_outside_the_nucleus_is_infinitely_wrong(model: Any, scorer: PlainModel) -> None:
    sample = sample_with(model, log_prob_mode="processed", temperature=0.7, top_p=0.9)
    worst = int(np.argmin(logits_after(model, sample["tokens"][:-1])))
    sample["tokens"][-1] = worst
    report = verify(scorer, [sample])
    assert report.max_difference == np.inf
    assert report.worst is not None
    assert (report.worst.position, report.worst.token, report.worst.recomputed) == (18, worst, -np.inf)


def test_where_rounding_decides_what_is_in_the_nucleus_both_sets_are_right(model: Any, scorer: PlainModel) -> None:
    logits = logits_after(model, PROMPT)
    best = int(np.argmax(logits))
    mass = float(np.exp(logits[best]) / np.exp(logits).sum())
    turn = {"start": 0, "end": 1, "log_prob_mode": "processed", "temperature": 1.0, "top_k": 0}
    sample = {"tokens": [*PROMPT, best], "response_length": 1, "loss_mask": [1]}
    alone = 0.0
    with_second = processed_log_prob(logits, best, 1.0, 2, 1.0)
    for top_p in (mass - 2e-6, mass + 2e-6):
        for recorded in (alone, with_second):
            metadata = {"turns": [turn | {"top_p": top_p}]}
            report = verify(scorer, [sample | {"rollout_log_probs": [recorded], "metadata": metadata}])
            assert report.max_difference < 1e-5


@pytest.mark.parametrize("place", [0, 4, 7, 11])
def test_one_wrong_log_prob_is_found_where_it_is(scorer: PlainModel, sample: Json, altered: Json, place: int) -> None:
    altered["rollout_log_probs"][place] -= 0.01
    report = verify(scorer, [sample, altered])
    assert report.failures == ("1 of 20 log probs differ by more than 0.001",)
    assert report.worst is not None
    assert (report.worst.sample, report.worst.position) == (1, len(PROMPT) + place)
    assert report.worst.token == altered["tokens"][len(PROMPT) + place]


@pytest.mark.parametrize("position", [0, 3, 6, 8, 12, 13])
def test_a_changed_id_is_found(scorer: PlainModel, altered: Json, position: int) -> None:
    altered["tokens"][position] = (altered["tokens"][position] + 1) % VOCAB
    assert not verify(scorer, [altered]).ok


def test_a_tolerance_that_hides_the_control_fails(scorer: PlainModel, sample: Json) -> None:
    report = verify(scorer, [sample], tolerance=0.02)
    assert report.failures == ("negative control not caught: one log prob off by 0.01",)


def test_a_scorer_that_ignores_the_prompt_fails(sample: Json) -> None:
    class Echo:
        vocab_size = VOCAB

        def log_probs(self, row: SampleRow) -> np.ndarray:
            return np.array(sample["rollout_log_probs"], np.float32)[row.trained]

    report = verify_with(Echo(), [sample], 1e-3)
    assert report.max_difference < 1e-6
    assert report.failures == ("negative control not caught: one prompt id changed",)


def test_a_model_that_says_nan_fails(sample: Json) -> None:
    class Nan:
        vocab_size = VOCAB

        def log_probs(self, row: SampleRow) -> np.ndarray:
            return np.full(int(row.trained.sum()), np.nan, np.float32)

    assert "10 of 10 log probs differ by more than 0.001" in verify_with(Nan(), [sample], 1e-3).failures


def test_nothing_trained_is_a_failure(scorer: PlainModel, altered: Json) -> None:
    altered["loss_mask"] = [0] * 12
    altered["rollout_log_probs"] = [0.0] * 12
    for samples in ([], [altered]):
        report = verify(scorer, samples)
        assert report.failures == ("there is no trained token to verify",)
        assert np.isnan(report.max_difference)


def test_a_bad_sample_does_not_hide_behind_good_ones(scorer: PlainModel, sample: Json, altered: Json) -> None:
    altered["loss_mask"].pop()
    report = verify(scorer, [sample, altered])
    assert report.failures == ("sample 1: response_length is 12, loss_mask has 11 entries, rollout_log_probs 12",)
    assert report.max_difference < 1e-5


def changed(sample: Json, path: tuple[Any, ...], value: Any) -> Json:
    result = copy.deepcopy(sample)
    target = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return result


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("tokens",), None, "tokens is missing or not a list"),
        (("tokens", 2), VOCAB, "tokens[2] is 97, not an integer from 0 to 96"),
        (("tokens", 2), -1, "tokens[2] is -1"),
        (("tokens", 2), True, "tokens[2] is True"),
        (("tokens",), OUTPUT, "5 tokens cannot hold a prompt and a response of 12"),
        (("response_length",), 11, "response_length is 11"),
        (("response_length",), None, "response_length is None"),
        (("loss_mask", 1), 2, "loss_mask[1] is 2"),
        (("loss_mask", 5), 1, "response token 5 is trained but lies in no trained turn"),
        (("rollout_log_probs", 1), float("nan"), "rollout_log_probs[1] is nan"),
        (("rollout_log_probs", 1), None, "rollout_log_probs[1] is None"),
        (("rollout_log_probs", 1), 0.5, "rollout_log_probs[1] is 0.5, above 0"),
        (("rollout_log_probs", 6), -0.5, "rollout_log_probs[6] is not 0.0 though"),
        (("metadata",), {}, "metadata.turns is missing"),
        (("metadata", "turns"), "x", "metadata.turns is missing"),
        (("metadata", "turns", 0), 3, "metadata.turns[0] is not an object"),
        (("metadata", "turns", 0, "trained"), False, "response token 0 is trained but lies in no trained turn"),
        (("metadata", "turns", 0, "end"), 13, "metadata.turns[0]: [0, 13) is no span"),
        (("metadata", "turns", 0, "end"), 8, "metadata.turns overlap"),
        (("metadata", "turns", 1, "start"), None, "metadata.turns[1]: [None, 12) is no span"),
        (("metadata", "turns", 1, "log_prob_mode"), None, "metadata.turns[1].log_prob_mode is None"),
        (("metadata", "turns", 1, "turn_index"), 0, "metadata.turns[1].turn_index is 0"),
        (("metadata", "turns", 1, "seed"), 2**64, "metadata.turns[1].seed is 18446744073709551616"),
        (("metadata", "turns", 1, "min_tokens"), 1.5, "metadata.turns[1].min_tokens is 1.5, not a whole number"),
        (("metadata", "turns", 1, "versions"), 3, "metadata.turns[1].versions holds 3"),
        (("metadata", "turns", 1, "versions"), [[6, 8, 1]], "metadata.turns[1].versions holds [6, 8, 1]"),
        (("metadata", "turns", 1, "versions"), [[7, 12, -1]], "metadata.turns[1].versions holds [7, 12, -1]"),
    ],
)
def test_a_sample_that_contradicts_itself_is_refused(
    sample: Json, path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(SampleError) as caught:
        read_sample(changed(sample, path, value), VOCAB)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["temperature", "top_p", "top_k"])
@pytest.mark.parametrize("value", [None, -1, "1", True, float("nan")])
def test_a_processed_span_needs_its_sampling(sample: Json, key: str, value: Any) -> None:
    turn = {"log_prob_mode": "processed", "start": 0, "end": 12, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    with pytest.raises(SampleError, match=f"metadata.turns.0..{key} is "):
        read_sample(changed(sample, ("metadata", "turns"), [turn | {key: value}]), VOCAB)


def write(path: Path, samples: list[Json]) -> Path:
    path.write_text("".join(json.dumps(sample) + "\n\n" for sample in samples), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    status = main([str(argument) for argument in arguments])
    return status, capsys.readouterr().out


def test_verify_samples_loads_the_model_itself(model_dir: Path, sample: Json) -> None:
    assert verify_samples([sample], model_dir).ok
    assert not verify_samples([sample], model_dir, tolerance=0.02).ok


def test_the_command_ends_with_the_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_dir: Path, sample: Json
) -> None:
    status, out = run(capsys, write(tmp_path / "s.jsonl", [sample]), "--model", model_dir)
    assert status == 0
    label, figure = out.splitlines()[-1].rsplit(" ", 1)
    assert label == "max |log prob difference|"
    assert float(figure) < 1e-5
    assert out.startswith("1 samples, trained log probs: 10 raw; tolerance 0.001\n")
    assert out.count("caught") == 2
    assert "FAILED" not in out


def test_the_command_fails_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_dir: Path, altered: Json
) -> None:
    altered["rollout_log_probs"][3] -= 0.25
    status, out = run(capsys, write(tmp_path / "s.jsonl", [altered]), "--model", model_dir)
    assert status == 1
    assert "FAILED: 1 of 10 log probs differ by more than 0.001" in out
    assert "position 10, token 7" in out
    assert out.splitlines()[-1] == "max |log prob difference| 2.5e-01"


def test_the_report_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path, model_dir: Path, sample: Json) -> None:
    status, out = run(capsys, write(tmp_path / "s.jsonl", [sample]), "--model", model_dir, "--json")
    report = json.loads(out)
    assert (status, report["ok"], report["trained_tokens"]) == (0, True, 10)
    assert [control["caught"] for control in report["controls"]] == [True, True]


@pytest.mark.parametrize("content", ["", "\n\n", "{", "[1]\n", None])
def test_an_unusable_file_is_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_dir: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "s.jsonl").write_text(content, encoding="utf-8")
    assert main([str(tmp_path / "s.jsonl"), "--model", str(model_dir)]) == 1
    captured = capsys.readouterr()
    assert "FAILED: " in captured.out + captured.err


def test_a_folder_without_a_model_is_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sample: Json
) -> None:
    assert main([str(write(tmp_path / "s.jsonl", [sample])), "--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("FAILED: ")


def test_a_folder_with_a_model_of_no_known_kind_is_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sample: Json
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such kind"}')
    assert main([str(write(tmp_path / "s.jsonl", [sample])), "--model", str(tmp_path)]) == 1
    assert "holds no model that can be loaded" in capsys.readouterr().err


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("{}\n{]\n", encoding="utf-8")
    with pytest.raises(SampleError, match=r"s\.jsonl:2 is not JSON"):
        read_jsonl(path)


def test_the_worst_tokens_text_is_shown(sample: Json) -> None:
    class Zero:
        vocab_size = VOCAB

        def log_probs(self, row: SampleRow) -> np.ndarray:
            return np.zeros(int(row.trained.sum()), np.float32)

    report = verify_with(Zero(), [sample], 1e-3, lambda ids: f"<{ids[-1]}>")
    assert report.worst is not None
    assert f", at the end of '<{report.worst.token}>'" in render(report)


def test_verification_imports_nothing_that_serves_or_records() -> None:
    code = "import sys, engine.verify, engine.rescore; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "engine" in names
    assert not {"model_repo", "adapter", "grpc", "tritonclient", "aiohttp"} & set(names)


def other_weights(model: Any, folder: Path) -> Any:
    """A model of the same shape that says something else."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(-1)
    other.save_pretrained(folder)
    return other


def sample_over_an_update(first: Any, second: Any, place: int) -> Json:
    """One turn of ten tokens, those from ``place`` on sampled by the second model, as version 8 after 7."""
    tokens, recorded = list(PROMPT), []
    for count, wanted in enumerate(OUTPUT + OUTPUT):
        logits = logits_after(first if count < place else second, tokens)
        recorded.append(processed_log_prob(logits, wanted, 1.0, 0, 1.0))
        tokens.append(wanted)
    turn = {"start": 0, "end": 10, "log_prob_mode": "raw", "versions": [[0, place, 7], [place, 10, 8]]}
    return {
        "tokens": tokens,
        "response_length": 10,
        "loss_mask": [1] * 10,
        "rollout_log_probs": recorded,
        "metadata": {"turns": [turn]},
    }


def test_each_token_is_scored_by_the_weights_of_its_version(
    model: Any, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_weights(model, tmp_path / "other")
    export = tmp_path / "samples.jsonl"
    export.write_text(json.dumps(sample_over_an_update(model, other, 4)) + "\n")
    seven, eight = f"--weights=7={model_dir}", f"--weights=8={tmp_path / 'other'}"
    assert main([str(export), seven, eight, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    by_version = report["differences"]["by_version"]
    assert {version: group["tokens"] for version, group in by_version.items()} == {"7": 4, "8": 6}
    assert report["max_difference"] < 1e-4
    swapped = (f"--weights=8={model_dir}", f"--weights=7={tmp_path / 'other'}")
    assert main([str(export), *swapped, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["max_difference"] > 0.1
    assert main([str(export), seven]) == 1
    assert "no weights of version 8 (there are: 7); give --weights 8=PATH" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["7"], "is not VERSION=PATH"),
        (["x=/w"], "is not VERSION=PATH"),
        (["7="], "is not VERSION=PATH"),
        (["7=/a", "7=/b"], "version 7 is given twice"),
    ],
)
def test_weights_that_are_not_named_by_version(items: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_weights(items)
