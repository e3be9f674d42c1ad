"""The front: every request gets one final answer, and a bad one costs nobody else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from common.coalesce import Coalescing
from common.control import ControlOp
from common.front import ControlCall, Front, FrontSettings
from common.generation import Generation
from common.parameters import ParameterError, Parameters
from common.replies import FinishReason

from tests.model_repo.doubles import LIMITS, FakeReader, FakeSender, contract

PREFIX = "invalid request: "


class Recorder:
    """A backend that keeps what it is given."""

    def __init__(self) -> None:
        self.submitted: list[Generation] = []
        self.cancelled: list[Generation] = []

    def submit(self, generation: Generation) -> None:
        if generation.request.session == "breaks":
            raise RuntimeError("a bug")
        self.submitted.append(generation)

    def cancel(self, generation: Generation) -> None:
        self.cancelled.append(generation)

    def control(self, call: ControlCall) -> None:
        if call.control.op is ControlOp.FLUSH:
            call.fail("cannot flush")
        else:
            call.answer(3, live=1)


def make_front() -> tuple[Front, Recorder, list[str]]:
    backend, warnings = Recorder(), []
    settings = FrontSettings(LIMITS, Coalescing(), engine_log=None)
    return Front(contract(), settings, backend, warnings.append), backend, warnings


def reader(request_id: str, *, prompt: tuple[int, ...] = (1, 2), session: str = "", **tensors: Any) -> FakeReader:
    required = {
        "input_ids": np.array([prompt], np.int32).reshape(1, -1),
        "input_lengths": np.array([[len(prompt)]], np.int32),
        "request_output_len": np.array([[4]], np.int32),
    }
    return FakeReader(required | tensors, request_id, json.dumps({"session": session}))


def stop(request_id: str) -> FakeReader:
    return reader(request_id, stop=np.array([[True]]))


def control(text: bytes) -> FakeReader:
    return reader("c", control=np.array([[text]], object))


def test_a_bad_request_among_good_ones_is_refused_alone() -> None:
    front, backend, _ = make_front()
    senders = [FakeSender() for _ in range(3)]
    front.execute(zip([reader("a"), reader("b", prompt=()), reader("c")], senders, strict=True))
    assert [generation.request_id for generation in backend.submitted] == ["a", "c"]
    assert [sender.error for sender in senders] == [None, PREFIX + "input_ids: empty", None]
    assert [sender.finals for sender in senders] == [0, 1, 0]


def test_a_duplicate_of_a_live_id_is_refused_and_the_live_one_goes_on() -> None:
    front, backend, _ = make_front()
    first, second, third = FakeSender(), FakeSender(), FakeSender()
    front.execute([(reader("a"), first), (reader("a"), second)])
    assert second.error == PREFIX + "request id 'a' is live already"
    backend.submitted[0].finish(FinishReason.STOP, cached_tokens=0, weight_version=0)
    assert first.finish_reason == "stop"
    front.execute([(reader("a"), third)])
    assert (third.error, front.live) == (None, 1)


def test_stop_marks_the_live_request_and_is_answered_empty() -> None:
    front, backend, _ = make_front()
    stopping, unknown = FakeSender(), FakeSender()
    front.execute([(reader("a"), FakeSender()), (stop("a"), stopping), (stop("nobody"), unknown)])
    (generation,) = backend.submitted
    assert generation.cancelled
    assert backend.cancelled == [generation]
    for sender in (stopping, unknown):
        assert (sender.responses, sender.finals, sender.error) == ([{}], 1, None)


def test_control_is_answered_with_json_alone() -> None:
    front, _, _ = make_front()
    sender = FakeSender()
    front.execute([(control(b'{"op": "stats"}'), sender)])
    (response,) = sender.responses
    assert list(response) == ["control_reply"]
    answer = json.loads(response["control_reply"][0, 0])
    assert len(answer.pop("instance")) == 16
    assert answer == {
        "op": "stats",
        "weight_version": 3,
        "log_prob_mode": "raw",
        "guided_decoding": [],
        "loras": [],
        "live": 1,
    }
    assert sender.finals == 1


def test_each_start_of_a_model_is_another_instance() -> None:
    """``stats`` says it, other operations do not."""
    instances = []
    for _ in range(2):
        front, _, _ = make_front()
        for _ in range(2):
            sender = FakeSender()
            front.execute([(control(b'{"op": "stats"}'), sender)])
            instances.append(json.loads(sender.responses[0]["control_reply"][0, 0])["instance"])
    assert instances[0] == instances[1] != instances[2] == instances[3]


def test_a_refused_or_failed_control_is_an_error() -> None:
    front, _, _ = make_front()
    refused, failed = FakeSender(), FakeSender()
    front.execute([(control(b"?"), refused), (control(b'{"op": "flush"}'), failed)])
    assert (refused.error, failed.error) == (PREFIX + "control: not JSON", "cannot flush")


def test_a_bug_costs_its_request_only_and_is_told() -> None:
    front, backend, warnings = make_front()
    broken, good = FakeSender(), FakeSender()
    front.execute([(reader("a", session="breaks"), broken), (reader("a"), good)])
    assert broken.error is not None
    assert not broken.error.startswith(PREFIX)
    assert "a bug" in warnings[0]
    assert [generation.request_id for generation in backend.submitted] == ["a"]


def test_settings_come_from_the_models_parameters() -> None:
    def settings(**values: str) -> FrontSettings:
        config = {name: {"string_value": value} for name, value in values.items()}
        return FrontSettings.from_parameters(Parameters.from_model_config(json.dumps({"parameters": config})))

    default = settings(vocab_size="10", max_seq_len="20")
    assert (default.limits.vocab_size, default.limits.max_seq_len) == (10, 20)
    assert (default.coalescing, default.engine_log) == (Coalescing(0.02, 0.001, 0.1), None)
    given = settings(vocab_size="10", max_seq_len="20", coalesce_ms="0", engine_log="/x/y")
    assert (given.coalescing.shortest, str(given.engine_log)) == (0.0, "/x/y")
    with pytest.raises(ParameterError, match="parameter vocab_size: missing"):
        settings(max_seq_len="20")
    with pytest.raises(ParameterError, match="parameter max_seq_len: 1 is below 2"):
        settings(vocab_size="10", max_seq_len="1")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "parameter n: missing"),
        ({"n": "x"}, "parameter n: 'x' is not an integer"),
        ({"n": "1.5"}, "parameter n: '1.5' is not an integer"),
        ({"n": "-1"}, "parameter n: -1 is below 0"),
    ],
)
def test_a_wrong_integer_parameter_is_named(values: dict[str, str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Parameters(values).integer("n")


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-0.1"])
def test_a_wrong_number_parameter_is_named(value: str) -> None:
    with pytest.raises(ParameterError, match="parameter n: "):
        Parameters({"n": value}).number("n")
