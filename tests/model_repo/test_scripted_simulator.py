"""The scripted model in virtual time: cuts, timing, slots, prefix reuse, faults, cancel, control."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common.control import parse_control
from common.engine_log import EngineLog
from common.front import ControlCall
from common.generation import Generation
from common.requests import Limits

from model_repo.scripted.noise import jitter_factor, log_prob
from model_repo.scripted.rules import RuleBook
from model_repo.scripted.script import parse_script
from model_repo.scripted.simulator import Simulator
from tests.model_repo.doubles import FakeSender, VirtualSchedule, make_request


@dataclass
class TimedSender(FakeSender):
    """Also keeps when each response left."""

    schedule: VirtualSchedule = field(default_factory=VirtualSchedule)
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.on_send = lambda: self.times.append(round(self.schedule.now, 6))


class Model:
    """A simulator over virtual time. ``script`` is the script's JSON; texts are one id for each character."""

    def __init__(self, script: dict[str, Any], *, window: float = 0.0, log: EngineLog | None = None) -> None:
        self.schedule = VirtualSchedule()
        self.crashes = 0
        self._window = window
        self._log = log
        parsed = parse_script(script, lambda text: [ord(c) for c in text], {})
        self.simulator = Simulator(
            rules=RuleBook(parsed, decode),
            timing=parsed.timing,
            limits=Limits(vocab_size=1000, max_seq_len=100),
            weight_version=0,
            schedule=self.schedule,
            crash=self._crash,
        )

    def submit(self, **request: Any) -> tuple[Generation, TimedSender]:
        sender = TimedSender(schedule=self.schedule)
        generation = Generation(
            make_request(**request), sender, window=lambda: self._window, log=self._log, on_end=lambda _: None
        )
        self.simulator.submit(generation)
        return generation, sender

    def answer(self, **request: Any) -> TimedSender:
        """Submit and run to the end of all there is to do."""
        _, sender = self.submit(**request)
        self.schedule.run()
        return sender

    def control(self, text: str) -> dict[str, Any]:
        sender = FakeSender()
        self.simulator.control(ControlCall(parse_control(text), sender))
        self.schedule.run(self.schedule.now)
        return dict(json.loads(sender.responses[0]["control_reply"][0, 0]))

    def refused(self, text: str) -> str | None:
        sender = FakeSender()
        self.simulator.control(ControlCall(parse_control(text), sender))
        self.schedule.run(self.schedule.now)
        return sender.error

    def _crash(self) -> None:
        self.crashes += 1


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def default(**reply: Any) -> dict[str, Any]:
    return {"default": {"ids": [10, 11, 12]} | reply}


def output(sender: FakeSender) -> list[int]:
    return [token for ids in sender.ids for token in ids]


@pytest.mark.parametrize(
    ("reply", "request_fields", "ids", "reason"),
    [
        ({}, {}, [10, 11, 12], "stop"),
        ({"finish_reason": "length"}, {}, [10, 11, 12], "length"),
        ({"end": True}, {}, [10, 11, 12, 9], "stop"),
        ({"end": True}, {"end_ids": (8, 9)}, [10, 11, 12, 8], "stop"),
        ({"end": True}, {"end_ids": ()}, [10, 11, 12], "stop"),
        ({}, {"max_tokens": 2}, [10, 11], "length"),
        ({"end": True}, {"max_tokens": 3}, [10, 11, 12], "length"),
        ({}, {"end_ids": (11,)}, [10, 11], "stop"),
        ({"finish_reason": "length"}, {"end_ids": (11,)}, [10, 11], "stop"),
        ({}, {"stop_words": ((10, 11),)}, [10, 11], "stop"),
        ({}, {"end_ids": (11,), "min_tokens": 2}, [10, 11, 12], "stop"),
        ({"ids": [10, 9]}, {"min_tokens": 5}, [10, 9, 10, 9, 10], "stop"),
        ({"ids": [10, 9]}, {"min_tokens": 3}, [10, 9, 10], "stop"),
        ({"ids": []}, {"min_tokens": 5}, [], "stop"),
        ({"ids": [], "end": True}, {}, [9], "stop"),
        ({"ids": None, "text": "AB"}, {}, [65, 66], "stop"),
    ],
)
def test_a_reply_ends_where_a_model_would_end_it(
    reply: dict[str, Any], request_fields: dict[str, Any], ids: list[int], reason: str
) -> None:
    sender = Model(default(**reply)).answer(**request_fields)
    assert (output(sender), sender.finish_reason, sender.finals) == (ids, reason, 1)


def test_given_log_probs_are_sent_and_others_come_from_seed_position_and_id() -> None:
    given = Model(default(log_probs=[-1, -2, float("nan"), -4], end=True)).answer()
    values = np.concatenate([r["output_log_probs"][0, 0] for r in given.responses])
    np.testing.assert_array_equal(values, np.array([-1, -2, np.nan, -4], np.float32))
    made_up = Model(default()).answer(seed=5)
    values = np.concatenate([r["output_log_probs"][0, 0] for r in made_up.responses])
    expected = [log_prob(5, position, token) for position, token in enumerate((10, 11, 12))]
    np.testing.assert_array_equal(values, np.array(expected, np.float32))


def test_a_request_that_no_rule_answers_fails() -> None:
    sender = Model({"rules": [{"session": "a", "ids": [1]}]}).answer(session="b")
    assert (sender.error, sender.finals) == ("no rule of the script matches the request", 1)


def timed(**timing: Any) -> dict[str, Any]:
    return default() | {"timing": timing}


def test_prefill_and_token_times() -> None:
    sender = Model(timed(prefill_tokens_per_s=10, time_per_output_token_ms=50)).answer()
    assert sender.times == [0.3, 0.35, 0.4]  # a prompt of three


def test_a_replys_own_token_time_counts_in_place_of_the_timings() -> None:
    script = timed(time_per_output_token_ms=50)
    script["default"]["time_per_output_token_ms"] = 10
    assert Model(script).answer().times == [0.0, 0.01, 0.02]
    script["default"]["time_per_output_token_ms"] = 0
    assert Model(script).answer().times == [0.0, 0.0, 0.0]


def test_jitter_scales_each_token_time_by_seed_and_position() -> None:
    script = timed(time_per_output_token_ms=100, jitter=0.5)
    first = 0.1 * jitter_factor(0.5, 7, 1)
    expected = [0.0, round(first, 6), round(first + 0.1 * jitter_factor(0.5, 7, 2), 6)]
    assert Model(script).answer(seed=7).times == expected
    assert Model(script).answer(seed=8).times != expected


def test_by_default_everything_is_instant() -> None:
    assert Model(default()).answer().times == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("window", "messages"),
    [
        (0.0, [[65], [66], [67], [68], [69], [70], [71], [72]]),
        (0.020, [[65], [66, 67], [68, 69, 70], [71, 72]]),
        (1.0, [[65], [66, 67, 68, 69, 70, 71, 72]]),
    ],
)
def test_tokens_are_coalesced_by_scripted_time(window: float, messages: list[list[int]]) -> None:
    """7 ms per token, so 65 at 0, 66 and 67 by 20, 68 to 70 by 40, and the rest with the end at 49."""
    script = {"default": {"text": "ABCDEFGH"}, "timing": {"time_per_output_token_ms": 7}}
    assert Model(script, window=window).answer().ids == messages


def test_requests_beyond_the_slots_wait_in_order() -> None:
    model = Model(timed(slots=2, time_per_output_token_ms=100))
    senders = [model.submit(request_id=str(i))[1] for i in range(5)]
    model.schedule.run()
    assert [sender.times[0] for sender in senders] == [0.0, 0.0, 0.2, 0.2, 0.4]
    assert [sender.finish_reason for sender in senders] == ["stop"] * 5


def prompt(*ids: int) -> dict[str, Any]:
    return {"prompt_ids": np.array(ids, np.int32)}


def cached(sender: FakeSender) -> int:
    return int(sender.responses[-1]["cached_tokens"][0, 0])


def test_the_prefix_of_the_sessions_last_request_is_cached_and_saves_its_prefill() -> None:
    model = Model(timed(block_size=2, prefill_tokens_per_s=10))
    first = model.answer(session="s", **prompt(1, 2, 3))
    assert (cached(first), first.times[0]) == (0, 0.3)
    began = model.schedule.now
    second = model.answer(session="s", **prompt(1, 2, 3, 10, 11, 12, 4))
    assert (cached(second), round(second.times[0] - began, 6)) == (6, 0.1)
    assert cached(model.answer(session="other", **prompt(1, 2, 3))) == 0
    assert cached(model.answer(session="s", lora="sql", **prompt(1, 2, 3))) == 0
    assert cached(model.answer(session="s", lora="sql", **prompt(1, 2, 3))) == 2
    assert cached(model.answer(session="s", **prompt(1, 2, 3))) == 2


def test_flush_and_new_weights_empty_the_cache() -> None:
    model = Model(timed(block_size=1))
    for operation in ('{"op": "flush"}', '{"op": "update_weights", "version": 3}'):
        model.answer(session="s")
        assert cached(model.answer(session="s")) == 2
        assert model.control('{"op": "stats"}')["cache_tokens"] == 6
        model.control(operation)
        assert model.control('{"op": "stats"}')["cache_tokens"] == 0
        assert cached(model.answer(session="s")) == 0


def test_new_weights_wait_for_the_end_of_live_requests() -> None:
    model = Model(timed(time_per_output_token_ms=100))
    _, sender = model.submit()
    model.schedule.run(0.15)
    update = '{"op": "update_weights", "version": 5, "path": "/w5"}'
    assert model.refused(update) == "update_weights: 1 requests are live; end or cancel them first"
    model.schedule.run()
    updated = {"op": "update_weights", "weight_version": 5, "path": "/w5"}
    assert model.control(update) == updated
    _, after = model.submit()
    assert model.control(update) == updated  # they are in force already
    model.schedule.run()
    assert {int(r["weight_version"][0, 0]) for r in sender.responses} == {0}
    assert {int(r["weight_version"][0, 0]) for r in after.responses} == {5}


def test_rules_answer_by_the_weights_in_force() -> None:
    model = Model({"rules": [{"weight_version": 5, "ids": [7]}], "default": {"ids": [3]}})
    answers = [model.answer()]
    model.control('{"op": "update_weights", "version": 5}')
    answers.append(model.answer())
    assert [answer.responses[0]["output_ids"].ravel().tolist() for answer in answers] == [[3], [7]]


def test_stats() -> None:
    model = Model(timed(slots=1, time_per_output_token_ms=100))
    for index in range(3):
        model.submit(request_id=str(index))
    model.schedule.run(0.05)
    assert model.control('{"op": "stats"}') == {
        "op": "stats",
        "weight_version": 0,
        "path": "",
        "vocab_size": 1000,
        "max_seq_len": 100,
        "live": 3,
        "waiting": 2,
        "slots": 1,
        "cache_tokens": 0,
    }


def cancel(model: Model, generation: Generation) -> None:
    generation.mark_cancelled()
    model.simulator.cancel(generation)


def test_a_cancelled_request_ends_with_what_it_has_and_frees_its_slot() -> None:
    model = Model(timed(slots=1, time_per_output_token_ms=100))
    first, sender = model.submit()
    _, waiting = model.submit(request_id="r2")
    model.schedule.run(0.15)
    cancel(model, first)
    model.schedule.run()
    assert (output(sender), sender.finish_reason, sender.finals) == ([10, 11], "cancelled", 1)
    assert waiting.times[0] == 0.15


def test_a_waiting_request_can_be_cancelled_without_ever_getting_a_slot() -> None:
    model = Model(timed(slots=1, time_per_output_token_ms=100))
    _, running = model.submit()
    waiting, sender = model.submit(request_id="r2")
    _, last = model.submit(request_id="r3")
    model.schedule.run(0.05)
    cancel(model, waiting)
    model.schedule.run()
    assert (sender.ids, sender.finish_reason, sender.times) == ([[]], "cancelled", [0.05])
    assert (running.finish_reason, last.times[0]) == ("stop", 0.2)


def test_cancel_after_the_end_does_nothing() -> None:
    model = Model(default())
    generation, sender = model.submit()
    model.schedule.run()
    cancel(model, generation)
    model.schedule.run()
    assert (sender.finals, sender.finish_reason) == (1, "stop")


def faulty(kind: str, **fault: Any) -> dict[str, Any]:
    return default(fault={"kind": kind} | fault) | {"timing": {"time_per_output_token_ms": 100, "slots": 1}}


def test_error_before_the_first_token() -> None:
    sender = Model(faulty("error_before_first_token", message="out of memory")).answer()
    assert (sender.responses, sender.error, sender.finals) == ([], "out of memory", 1)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cut_after_some_tokens_frees_the_slot(after: int) -> None:
    model = Model(faulty("cut", after=after))
    _, first = model.submit()
    _, second = model.submit(request_id="r2")
    model.schedule.run()
    for sender in (first, second):
        assert (output(sender), sender.error, sender.finals) == ([10, 11, 12][:after], "scripted fault: cut", 1)


def test_a_fault_that_the_token_limit_forestalls_does_not_happen() -> None:
    sender = Model(faulty("cut", after=3)).answer(max_tokens=2)
    assert (output(sender), sender.error, sender.finish_reason) == ([10, 11], None, "length")


def test_a_stall_keeps_the_slot_until_it_is_cancelled_and_holds_no_token_back() -> None:
    model = Model(faulty("stall", after=2), window=0.5)
    stalled, sender = model.submit()
    _, waiting = model.submit(request_id="r2")
    model.schedule.run(100.0)
    assert (sender.ids, sender.times) == ([[10], [11]], [0.0, 0.5])
    assert (sender.finals, waiting.responses) == (0, [])
    cancel(model, stalled)
    model.schedule.run(100.0)
    assert sender.finish_reason == "cancelled"
    assert waiting.times == [100.0]


def test_a_stall_of_some_seconds_goes_on() -> None:
    sender = Model(faulty("stall", after=1, seconds=5)).answer()
    assert (output(sender), sender.finish_reason) == ([10, 11, 12], "stop")
    assert sender.times == [0.0, 5.1, 5.2]


def test_crash_after_some_tokens() -> None:
    model = Model(faulty("crash", after=2))
    sender = model.answer()
    assert (model.crashes, output(sender), sender.finals) == (1, [10, 11], 0)


def test_what_is_live_when_the_model_is_unloaded_fails() -> None:
    model = Model(timed(slots=1, time_per_output_token_ms=100))
    senders = [model.submit(request_id=str(index))[1] for index in range(2)]
    model.schedule.run(0.05)
    model.simulator.end_all("unloaded")
    assert [(sender.error, sender.finals) for sender in senders] == [("unloaded", 1)] * 2


def test_the_log_says_what_was_sampled_even_if_it_never_left(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log.jsonl")
    model = Model(faulty("cut", after=2), log=log)
    model.answer(streaming=False, session="s", turn=4)
    log.close()
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert (line["session"], line["turn"], line["output_ids"]) == ("s", 4, [10, 11])
    assert (line["finish_reason"], line["error"]) == ("error", "scripted fault: cut")


def test_hundreds_at_once_all_end_with_their_own_reply() -> None:
    model = Model({"default": {"ids": [1, 2, 3] * 10}, "timing": {"slots": 32, "time_per_output_token_ms": 5}})
    senders = [model.submit(request_id=str(index), seed=index, max_tokens=30)[1] for index in range(300)]
    model.schedule.run()
    assert all(output(sender) == [1, 2, 3] * 10 and sender.finals == 1 for sender in senders)
    assert len({sender.responses[0]["output_log_probs"][0, 0, 0] for sender in senders}) == 300


def rest_of_a_reply(model: Model, *output: int, **request: Any) -> TimedSender:
    return model.answer(**prompt(1, 2, *output), continued=len(output), **request)


def test_a_reply_goes_on_where_it_ended() -> None:
    model = Model(default(log_probs=[-0.1, -0.2, -0.3]))
    sender = rest_of_a_reply(model, 10)
    assert output(sender) == [11, 12]
    log_probs = [value for response in sender.responses for value in response["output_log_probs"][0, 0]]
    assert log_probs == pytest.approx([-0.2, -0.3])
    assert sender.responses[-1]["finish_reason"][0, 0] == b"stop"
    assert output(rest_of_a_reply(model, 10, 11, 12)) == []
    assert output(rest_of_a_reply(model, 10, end_ids=(11,))) == [11]


def test_the_fault_that_broke_a_reply_off_does_not_break_off_its_rest() -> None:
    model = Model(faulty("cut", after=2))
    assert model.answer(**prompt(1, 2)).error is not None
    sender = rest_of_a_reply(model, 10, 11)
    assert (sender.error, output(sender)) == (None, [12])
    assert rest_of_a_reply(model, 10).error is not None


def test_nobody_has_the_rest_behind_a_lasting_fault() -> None:
    model = Model(faulty("cut", after=1, lasting=True))
    for begun in ((10,), (10, 11)):
        sender = rest_of_a_reply(model, *begun)
        assert (sender.error, output(sender)) == ("scripted fault: cut", [])
