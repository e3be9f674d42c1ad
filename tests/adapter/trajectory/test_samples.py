"""What samples carry beside their tokens: log probs, reward, flags, spans; and what limits them."""

from __future__ import annotations

import json
import math

import pytest

from adapter.trajectory import Export, Ledger, Sample, Trajectory
from adapter.types import Sampling, TurnRecord, VersionSpan
from engine.types import Guide, GuideKind, LogProbMode, SamplingParams
from tests.adapter.trajectory.alphabet import check_samples, export, ids, message, messages, record, recorded, turn
from tests.adapter.trajectory.saving import SavingTrajectory

TWO_TURNS = "s10 u20 -> a30; s10 u20 a30 t40 -> a31"
REALIGNED = "s10 u20 -> a30; s10 u20 a30 t40 [P 30 99 4 40 5 3] -> a31"
TOOL_FORK = TWO_TURNS + "; s10 u20 a30 t41 -> a32"


def log_probs_of(turns: str, *of_turns: float | None) -> list[list[float]]:
    """Rollout log probs of the samples, every token of turn i having been sampled with the i-th log prob."""
    trajectory = Trajectory()
    for text, value in zip(turns.split(";"), of_turns, strict=True):
        record(trajectory, text, lambda _, value=value: value)
    return [sample.rollout_log_probs for sample in export(trajectory).samples]


@pytest.mark.parametrize(
    ("turns", "of_turns", "log_probs"),
    [
        pytest.param("s10 u20 -> a30", [-0.5], [[-0.5, -0.5]], id="2.1"),
        pytest.param(TWO_TURNS, [-0.5, -0.4], [[-0.5, -0.5, 0, 0, 0, 0, -0.4, -0.4]], id="2.2"),
        pytest.param(REALIGNED, [-0.5, -0.4], [[0, 0, 0, 0, 0, 0, -0.4, -0.4]], id="2.4"),
        pytest.param(
            TOOL_FORK,
            [-0.5, -0.4, -0.3],
            [[-0.5, -0.5, 0, 0, 0, 0, -0.4, -0.4], [0, 0, 0, 0, 0, 0, -0.3, -0.3]],
            id="2.10",
        ),
        pytest.param(TWO_TURNS, [-0.5, None], [[-0.5, -0.5, 0, 0, 0, 0, 0, 0]], id="4.5"),
        pytest.param(TWO_TURNS, [None, None], [[0] * 8], id="none at all"),
    ],
)
def test_log_probs(turns: str, of_turns: list[float | None], log_probs: list[list[float]]) -> None:
    assert log_probs_of(turns, *of_turns) == [pytest.approx(each) for each in log_probs]


def test_turns_without_log_probs_train() -> None:
    """Case 4.5: the mask does not depend on them. An empty list says the same as None."""
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30", lambda _: -0.5)
    record(trajectory, "s10 u20 a30 t40 -> a31", lambda _: None)
    trajectory.record_turn(
        turn=TurnRecord(ids("P"), [32, 5], []), prompt_messages=messages("s10 u20"), response_message=None
    )
    assert [sample.loss_mask for sample in export(trajectory).samples] == [[1, 1, 0, 0, 0, 0, 1, 1], [1, 1]]


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param("s10 u20 -> a30; s10 u20 a30 t40 [1 10 5 2 20 5 99 3 30 5 4 40 5 3] -> a31", id="2.8 drift fork"),
        pytest.param("s10 u20 -> a30; s10 u21 -> a31", id="2.9 tree fork"),
    ],
)
@pytest.mark.parametrize("reward", [1.0, None, {"pass": 1.0}])
def test_every_sample_has_the_whole_reward(turns: str, reward: object) -> None:
    trajectory = Trajectory()
    record(trajectory, turns, lambda _: None)
    made = trajectory.export(base_sample=Sample(), reward=reward)
    assert [sample.reward for sample in made.samples] == [reward, reward]


def test_base_sample_and_metadata_are_carried_over() -> None:
    base = Sample(index=7, group_index=2, prompt="hi", label="yes")
    mine = {"sid": "demo", "truncated": "mine is overwritten"}
    (sample,) = recorded("s10 u20 -> a30").export(base_sample=base, extra_metadata=mine).samples
    assert (sample.index, sample.group_index, sample.prompt, sample.label) == (7, 2, "hi", "yes")
    assert (sample.rollout_id, sample.status) == (7, "completed")
    assert {key: value for key, value in sample.metadata.items() if key != "turns"} == {
        "sid": "demo",
        "truncated": False,
        "use_tool": False,
        "ill_formed": False,
        "leaf": 1,
    }
    assert mine == {"sid": "demo", "truncated": "mine is overwritten"}
    assert base.tokens == [] and base.metadata == {}


def test_rollout_id_stands_over_index() -> None:
    (sample,) = recorded("s10 u20 -> a30").export(base_sample=Sample(index=7, rollout_id=0)).samples
    assert sample.rollout_id == 0


def flags(made: Export) -> list[tuple[bool, bool, bool]]:
    return [tuple(each.metadata[key] for key in ("truncated", "use_tool", "ill_formed")) for each in made.samples]


def test_truncated_looks_at_the_last_turn_of_a_leaf() -> None:
    assert flags(export(recorded("s10 u20 -> a30 !length"))) == [(True, False, False)]
    assert flags(export(recorded("s10 u20 -> a30 !length; s10 u20 a30 t40 -> a31"))) == [(False, False, False)]
    forked = "s10 u20 -> a30; s10 u20 a30 t40 [1 99 3] -> a31 !length"
    assert flags(export(recorded(forked))) == [(True, False, False)] * 2, "all samples of the leaf say so"


def test_ill_formed_and_tool_use_count_anywhere_in_a_leaf() -> None:
    trajectory = Trajectory()
    call = {"role": "assistant", "content": "a30", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    first = turn("s10 u20 -> a30")
    trajectory.record_turn(
        turn=first.record(ill_formed=True), prompt_messages=first.prompt_messages, response_message=call
    )
    then = turn("s10 u20 a30 t40 -> a31")
    trajectory.record_turn(
        turn=then.record(),
        prompt_messages=[*messages("s10 u20"), call, message("t40")],
        response_message=then.response_message,
    )
    record(trajectory, "s10 u21 -> a32")
    assert flags(export(trajectory)) == [(False, True, True), (False, False, False)]


def test_tool_calls_of_foreign_messages_are_no_tool_use() -> None:
    trajectory = Trajectory()
    call = {"role": "assistant", "content": "a38", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    trajectory.record_turn(
        turn=turn("s10 u20 a38 t40 -> a30").record(),
        prompt_messages=[*messages("s10 u20"), call, message("t40")],
        response_message=message("a30"),
    )
    assert flags(export(trajectory)) == [(False, False, False)]


SAMPLING = Sampling(
    SamplingParams(temperature=0.75, top_p=0.5, top_k=20, seed=2**63),
    100,
    LogProbMode.RAW,
    Guide(GuideKind.REGEX, "a+"),
    "small",
)


def test_what_was_in_force_comes_back_out_of_a_journal() -> None:
    """The guide too: without it nobody could tell a guided turn from a free one."""
    trajectory = SavingTrajectory()
    record(trajectory, "s10 u20 -> a30", sampling=SAMPLING)
    (sample,) = export(trajectory.rebuilt()).samples
    assert sample.metadata["turns"][0]["guide"] == {"kind": "regex", "text": "a+"}
    assert sample.metadata == export(trajectory).samples[0].metadata


def test_a_response_is_decoded_by_the_model_that_sampled_its_end() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30")
    record(trajectory, "s10 u20 a30 t40 -> a31", sampling=SAMPLING)
    (sample,) = export(trajectory, decode=lambda model, response: f"{model} {len(response)}").samples
    assert sample.response == f"small {sample.response_length}"


def test_spans_say_whose_tokens_they_are() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30", sampling=SAMPLING, versions=(VersionSpan(0, 1, 4), VersionSpan(1, 2, 5)))
    record(trajectory, "s10 u20 a30 t40 -> a31 !length; s10 u20 a30 t41 -> a32", versions=(VersionSpan(0, 2, 5),))
    first, second = export(trajectory).samples
    in_force = {
        "model": "small",
        "log_prob_mode": "raw",
        "temperature": 0.75,
        "top_p": 0.5,
        "top_k": 20,
        "seed": 2**63,
        "min_tokens": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "guide": {"kind": "regex", "text": "a+"},
    }
    unknown = dict.fromkeys(in_force)
    a30 = {
        "turn_index": 1,
        "start": 0,
        "end": 2,
        "finish_reason": "stop",
        "reward": None,
        "label": None,
        "versions": [[0, 1, 4], [1, 2, 5]],
        **in_force,
    }
    assert first.metadata["turns"] == [
        {**a30, "trained": True},
        {
            "turn_index": 2,
            "start": 6,
            "end": 8,
            "finish_reason": "length",
            "versions": [[6, 8, 5]],
            "trained": True,
            "reward": None,
            "label": None,
            **unknown,
        },
    ]
    assert second.metadata["turns"][0] == {**a30, "trained": False}
    assert [span["turn_index"] for span in second.metadata["turns"]] == [1, 3]
    assert (first.metadata["leaf"], second.metadata["leaf"]) == (2, 3)
    assert (first.weight_versions, second.weight_versions) == (["4", "5"], ["5"])


def test_an_output_that_was_realigned_has_no_span() -> None:
    (sample,) = export(recorded(REALIGNED)).samples
    assert [(span["turn_index"], span["start"], span["end"]) for span in sample.metadata["turns"]] == [(2, 6, 8)]


def test_samples_are_json_ready() -> None:
    trajectory = Trajectory()
    record(trajectory, TOOL_FORK, sampling=SAMPLING, versions=(VersionSpan(0, 2, 5),))
    made = export(trajectory, decode=lambda _, response: " ".join(map(str, response)))
    for sample in made.samples:
        as_dict = sample.to_dict()
        assert json.loads(json.dumps(as_dict)) == as_dict
        assert list(as_dict) == [
            "index", "group_index", "rollout_id", "prompt", "label", "tokens", "response", "response_length",
            "loss_mask", "rollout_log_probs", "reward", "status", "metadata", "weight_versions",
        ]  # fmt: skip
    assert json.loads(json.dumps(made.ledger.to_dict())) == {"sampled": 6, "trained": 6, "dropped": {}}


def test_decode_gets_the_ids_of_the_response() -> None:
    (sample,) = export(recorded(TWO_TURNS), decode=lambda _, response: str(response)).samples
    assert sample.response == str(ids("30 5 4 40 5 3 31 5"))
    (sample,) = export(recorded(TWO_TURNS)).samples
    assert sample.response == ""


@pytest.mark.parametrize(
    ("limit", "samples", "spans", "cut"),
    [
        pytest.param(None, ["P | [30] [5] 4 40 5 3 [31] [5]"], [(0, 2), (6, 8)], 0, id="no limit"),
        pytest.param(0, ["P | [30] [5] 4 40 5 3 [31] [5]"], [(0, 2), (6, 8)], 0, id="0 is no limit"),
        pytest.param(15, ["P | [30] [5] 4 40 5 3 [31] [5]"], [(0, 2), (6, 8)], 0, id="just fits"),
        pytest.param(14, ["P | [30] [5] 4 40 5 3 [31]"], [(0, 2), (6, 7)], 1, id="within an output"),
        pytest.param(13, ["P | [30] [5] 4 40 5 3"], [(0, 2)], 2, id="before an output"),
        pytest.param(12, ["P | [30] [5] 4 40 5"], [(0, 2)], 2, id="a token before an output"),
        pytest.param(10, ["P | [30] [5] 4"], [(0, 2)], 2, id="within context"),
        pytest.param(8, ["P | [30]"], [(0, 1)], 3, id="one token left"),
        pytest.param(7, [], [], 4, id="at the end of the leading prompt"),
        pytest.param(3, [], [], 4, id="within the leading prompt"),
    ],
)
def test_max_sample_tokens(limit: int | None, samples: list[str], spans: list[tuple[int, int]], cut: int) -> None:
    trajectory = Trajectory()
    record(trajectory, TWO_TURNS, versions=(VersionSpan(0, 1, 4), VersionSpan(1, 2, 5)))
    made = export(trajectory, max_sample_tokens=limit)
    check_samples(made.samples, samples)
    shown = [span for sample in made.samples for span in sample.metadata["turns"]]
    assert [(span["start"], span["end"]) for span in shown] == spans
    for span in shown:
        covered = [token for start, end, _ in span["versions"] for token in range(start, end)]
        assert covered == list(range(span["start"], span["end"]))
        assert all(start < end for start, end, _ in span["versions"])
    assert made.ledger == Ledger(4, 4 - cut, {"cut": cut} if cut else {})


def test_a_sample_that_is_cut_down_to_context_is_dropped() -> None:
    made = export(recorded(TOOL_FORK), max_sample_tokens=13)
    check_samples(made.samples, ["P | [30] [5] 4 40 5 3"])
    assert made.ledger == Ledger(6, 2, {"cut": 4})


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_sample_tokens"):
        recorded(TWO_TURNS).export(base_sample=Sample(), max_sample_tokens=-1)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_token_without_a_finite_log_prob_is_not_trained(value: float) -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30 = 30 31 5", lambda token: value if token == 31 else -0.5)
    made = export(trajectory)
    (sample,) = made.samples
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 0, 1], [-0.5, 0.0, -0.5])
    assert made.ledger == Ledger(3, 2, {"non_finite_log_prob": 1})


def test_an_output_without_any_finite_log_prob_yields_no_sample() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30", lambda _: math.nan)
    made = export(trajectory, max_sample_tokens=8)
    assert made == Export([], Ledger(2, 0, {"non_finite_log_prob": 2}))


def test_a_cut_can_leave_only_what_does_not_train() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30")
    record(trajectory, "s10 u20 a30 t40 -> a31", lambda token: math.nan if token == 31 else -0.5)
    made = export(trajectory, max_sample_tokens=14)
    check_samples(made.samples, ["P | [30] [5] 4 40 5 3 31"])
    assert [span["trained"] for span in made.samples[0].metadata["turns"]] == [True, False]
    assert made.ledger == Ledger(4, 2, {"non_finite_log_prob": 1, "cut": 1})


def test_an_untrainable_turn_is_context() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30", untrainable="suspect_logprobs")
    record(trajectory, "s10 u20 a30 t40 -> a31")
    made = export(trajectory)
    check_samples(made.samples, ["P | 30 5 4 40 5 3 [31] [5]"])
    assert [span["trained"] for span in made.samples[0].metadata["turns"]] == [False, True]
    assert made.ledger == Ledger(4, 2, {"suspect_logprobs": 2})


def test_export_changes_nothing() -> None:
    trajectory = recorded(TOOL_FORK)
    first, second = export(trajectory), export(trajectory)
    assert first == second
    assert len(first.samples) == 2
