"""One generation: what leaves when, in which shapes, and that it ends once, in the right order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common.coalesce import Coalescing, Window
from common.engine_log import EngineLog
from common.generation import Generation
from common.replies import FinishReason
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import WireTensor, decode_chunk
from tests.model_repo.doubles import FakeSender, make_request


def start(
    sender: FakeSender, *, window: float = 0.0, log: EngineLog | None = None, on_end: Any = None, **changes: Any
) -> Generation:
    return Generation(
        make_request(**changes), sender, window=lambda: window, log=log, on_end=on_end or (lambda _: None)
    )


def add_all(generation: Generation, times: list[float], first_token: int = 100) -> None:
    """One token at each time, flushed as a model would."""
    for index, now in enumerate(times):
        while generation.flush_at is not None and generation.flush_at <= now:
            generation.flush(generation.flush_at)
        generation.add(first_token + index, -0.5 - index, 0, now)


def finish(generation: Generation, reason: FinishReason = FinishReason.STOP) -> None:
    generation.finish(reason, cached_tokens=2, weight_version=0)


def test_the_window_lets_the_first_message_go_and_then_waits() -> None:
    window = Window(lambda: 0.02)
    assert window.due_at <= 0
    window.sent(5.0)
    assert window.due_at == 5.02
    zero = Window(lambda: 0.0)
    zero.sent(5.0)
    assert zero.due_at == 5.0


@pytest.mark.parametrize(("live", "window"), [(1, 0.02), (20, 0.02), (30, 0.03), (100, 0.1), (500, 0.1)])
def test_the_window_grows_with_the_replies_that_are_streamed(live: int, window: float) -> None:
    assert Coalescing(shortest=0.02, per_live=0.001, longest=0.1).window(live) == pytest.approx(window)
    assert Coalescing(shortest=0.2, per_live=0.001, longest=0.1).window(live) == 0.2
    assert Coalescing(shortest=0.0, per_live=0.001, longest=0.1).window(live) == 0


def test_without_a_window_each_token_is_a_message_and_the_last_is_in_the_final_one() -> None:
    sender = FakeSender()
    generation = start(sender)
    add_all(generation, [0.0, 0.0, 0.0])
    assert generation.add(9, -1.0, 0, 0.0) is FinishReason.STOP
    finish(generation)
    assert sender.ids == [[100], [101], [102], [9]]


def test_the_window_joins_tokens_but_never_holds_up_the_first() -> None:
    sender = FakeSender()
    generation = start(sender, window=0.020)
    add_all(generation, [1.000, 1.005, 1.010, 1.025, 1.030])
    assert sender.ids == [[100], [101, 102]]
    assert generation.flush_at == pytest.approx(1.040)
    finish(generation)
    assert sender.ids == [[100], [101, 102], [103, 104]]


def test_a_token_that_comes_after_a_pause_leaves_at_once() -> None:
    sender = FakeSender()
    generation = start(sender, window=0.020)
    add_all(generation, [1.0, 2.0])
    assert sender.ids == [[100], [101]]


def test_flush_before_its_time_does_nothing() -> None:
    sender = FakeSender()
    generation = start(sender, window=0.020)
    add_all(generation, [1.0, 1.001])
    generation.flush(1.019)
    assert sender.ids == [[100]]


@given(
    st.lists(st.floats(0, 0.1), max_size=9),
    st.sampled_from([0.0, 0.005, 0.02, 0.1]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_whatever_the_rhythm_everything_leaves_once_and_in_order(
    gaps: list[float], window: float, streaming: bool, exclude_input: bool, log_probs: bool
) -> None:
    sender = FakeSender()
    generation = start(
        sender,
        window=window,
        streaming=streaming,
        exclude_input_in_output=exclude_input,
        return_log_probs=log_probs,
    )
    times = np.cumsum(gaps).tolist()
    add_all(generation, times)
    finish(generation)
    output = [100 + i for i in range(len(times))]
    prompt = [] if exclude_input else [1, 2, 3]
    assert [token for ids in sender.ids for token in ids] == prompt + output
    assert [int(r["sequence_length"][0, 0]) for r in sender.responses] == [len(ids) for ids in sender.ids]
    assert all(r["output_ids"].dtype == np.int32 and r["output_ids"].shape[:2] == (1, 1) for r in sender.responses)
    assert sender.finals == 1
    if not streaming:
        assert len(sender.responses) == 1
    if log_probs:
        sent = np.concatenate([r["output_log_probs"][0, 0] for r in sender.responses])
        assert sent.tolist() == [-0.5 - i for i in range(len(times))]
        assert sender.responses[-1]["cum_log_probs"][0, 0] == pytest.approx(sum(sent))
    else:
        assert not any("output_log_probs" in r or "cum_log_probs" in r for r in sender.responses)


def test_the_client_can_read_every_response() -> None:
    sender = FakeSender()
    generation = start(sender)
    add_all(generation, [0.0, 0.0])
    finish(generation, FinishReason.LENGTH)
    chunks = [
        decode_chunk(as_wire(response), final=response is sender.responses[-1], vocab_size=1000)
        for response in sender.responses
    ]
    assert [chunk.ids.tolist() for chunk in chunks] == [[100], [101], []]
    assert chunks[-1].finished is not None
    assert (chunks[-1].finished.reason, chunks[-1].finished.cached_tokens) == ("length", 2)


def as_wire(response: dict[str, Any]) -> dict[str, WireTensor]:
    """The response as it would travel."""
    kinds = {"int32": "INT32", "float32": "FP32", "object": "BYTES"}
    return {
        name: WireTensor(
            name,
            kinds[str(array.dtype)],
            array.shape,
            len(array[0, 0]).to_bytes(4, "little") + array[0, 0] if array.dtype == object else array.tobytes(),
        )
        for name, array in response.items()
    }


def test_the_token_limit_ends_with_length_and_an_end_id_at_the_limit_with_stop() -> None:
    generation = start(FakeSender(), max_tokens=2)
    assert generation.add(5, -1, 0, 0.0) is None
    assert generation.add(5, -1, 0, 0.0) is FinishReason.LENGTH
    generation = start(FakeSender(), max_tokens=2)
    assert generation.add(5, -1, 0, 0.0) is None
    assert generation.add(9, -1, 0, 0.0) is FinishReason.STOP


def test_a_message_has_one_weight_version() -> None:
    sender = FakeSender()
    generation = start(sender, window=10.0)
    for token, version in ((1, 0), (2, 0), (3, 1), (4, 1)):
        generation.add(token, -1.0, version, 0.0)
    generation.finish(FinishReason.CANCELLED, cached_tokens=0, weight_version=2)
    assert sender.ids == [[1], [2], [3, 4]]
    assert [int(r["weight_version"][0, 0]) for r in sender.responses] == [0, 0, 1]


def test_an_end_without_tokens_carries_the_version_in_force() -> None:
    sender = FakeSender()
    start(sender).finish(FinishReason.CANCELLED, cached_tokens=0, weight_version=5)
    assert sender.ids == [[]]
    assert int(sender.responses[0]["weight_version"][0, 0]) == 5


def test_a_failure_sends_what_was_sampled_and_then_the_error() -> None:
    sender = FakeSender()
    generation = start(sender, window=10.0)
    add_all(generation, [0.0, 0.1])
    generation.fail("broken", weight_version=0)
    assert sender.ids == [[100], [101]]
    assert (sender.error, sender.finals) == ("broken", 1)


def test_a_failure_of_a_reply_that_is_not_streamed_is_the_error_alone() -> None:
    sender = FakeSender()
    generation = start(sender, streaming=False)
    add_all(generation, [0.0, 0.1])
    generation.fail("broken", weight_version=0)
    assert (sender.responses, sender.error) == ([], "broken")


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_engine_log_has_the_request_and_all_that_was_sampled(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    log = EngineLog(path)
    generation = start(FakeSender(), log=log, session="s", turn=3, seed=2**64 - 1, temperature=0.25)
    values = np.array([-0.1, -1.7], np.float32)
    generation.add(4, float(values[0]), 0, 0.0)
    generation.add(5, float(values[1]), 1, 0.0)
    generation.finish(FinishReason.CANCELLED, cached_tokens=2, weight_version=1)
    log.close()
    (line,) = read_log(path)
    assert (line["request_id"], line["session"], line["turn"]) == ("r1", "s", 3)
    assert (line["prompt_ids"], line["output_ids"]) == ([1, 2, 3], [4, 5])
    assert np.array(line["log_probs"], np.float32).tobytes() == values.tobytes()
    assert (line["versions"], line["weight_version"]) == ([[0, 1, 0], [1, 2, 1]], 1)
    assert (line["finish_reason"], line["error"], line["cached_tokens"]) == ("cancelled", None, 2)
    assert (line["max_tokens"], line["sampling"]["seed"], line["sampling"]["temperature"]) == (10, 2**64 - 1, 0.25)
    assert line["received_at"] <= line["slot_freed_at"]


def test_the_engine_log_has_the_float32_values_that_were_sent(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log.jsonl")
    sender = FakeSender()
    generation = start(sender, log=log)
    generation.add(4, -0.1, 0, 0.0)
    finish(generation)
    log.close()
    (line,) = read_log(tmp_path / "log.jsonl")
    assert line["log_probs"] == sender.responses[0]["output_log_probs"][0, 0].tolist()


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for name in ("a", "b"):
        log = EngineLog(path)
        start(FakeSender(), log=log, request_id=name).fail("why", weight_version=0)
        log.close()
    assert [(line["request_id"], line["finish_reason"], line["error"]) for line in read_log(path)] == [
        ("a", "error", "why"),
        ("b", "error", "why"),
    ]


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_the_line_is_written_and_the_id_free_before_the_final_response(tmp_path: Path, end: str) -> None:
    path = tmp_path / "log.jsonl"
    log = EngineLog(path)
    order: list[tuple[str, int]] = []
    sender = FakeSender(on_send=lambda: order.append(("sent", len(read_log(path)))))
    generation = start(sender, log=log, on_end=lambda _: order.append(("free", len(read_log(path)))))
    if end == "finish":
        finish(generation)
        assert order == [("free", 1), ("sent", 1)]
    else:
        generation.fail("why", weight_version=0)
        assert order == [("free", 1)]
    log.close()
    assert sender.finals == 1


class FullDisk(EngineLog):
    def __init__(self) -> None: ...

    def write(self, entry: Any) -> None:
        raise OSError("no space left")


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_a_log_that_cannot_be_written_is_an_error_but_the_client_gets_its_end(end: str) -> None:
    sender = FakeSender()
    freed: list[Generation] = []
    generation = start(sender, log=FullDisk(), on_end=freed.append)
    with pytest.raises(OSError, match="no space left"):
        if end == "finish":
            finish(generation)
        else:
            generation.fail("why", weight_version=0)
    assert (sender.finals, freed) == (1, [generation])


def test_a_refused_request_frees_its_id_and_has_no_line_in_the_log(tmp_path: Path) -> None:
    log, sender, ended = EngineLog(tmp_path / "log.jsonl"), FakeSender(), []
    generation = Generation(
        make_request(), sender, window=lambda: 0.0, log=log, on_end=ended.append, refusal="invalid request: "
    )
    generation.refuse("guided_decoding_guide: no grammar")
    log.close()
    assert ended == [generation]
    assert sender.error == "invalid request: guided_decoding_guide: no grammar"
    assert (tmp_path / "log.jsonl").read_text() == ""
