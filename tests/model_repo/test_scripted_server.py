"""The scripted model on a real tritonserver: what its clients see, and that its engine log agrees."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.call import InferCall
from engine.client import TritonClient
from engine.contract import CONTROL_OUTPUTS, MODEL_NAME, WireTensor, encode_request, encode_word_list
from engine.errors import EngineFailed, EngineRejected, LaunchFailed
from engine.types import EngineInfo, FinishReason, GenerateRequest, LogProbMode, SamplingParams
from model_repo.scripted.noise import log_prob
from tests.model_repo.served import ANSWER_S, Reply, Served, changed, connected, rest_of, scalar, text
from tests.support.assets import tokenizer_dir
from tests.support.triton import running_triton
from tests.support.wait import until

VOCAB = 151936
MAX_SEQ_LEN = 100_000
IM_END = 151645
GOLDEN_IDS = [105464, 100134, 73345, 1773, IM_END]
GOLDEN_TEXT = "这是一个学习项目。<|im_end|>"
ENDLESS = 50_000
"""Tokens; minutes of them, at ``TOKEN_MS`` each."""
TOKEN_MS = 7
"""So that the times of tokens and of 20 ms windows differ for the first 20 tokens."""

SCRIPT: dict[str, Any] = {
    "timing": {"time_per_output_token_ms": TOKEN_MS, "block_size": 4},
    "rules": [
        {"session": "endless", "ids": [5, 6, 7]},
        {"session": "text", "text": GOLDEN_TEXT},
        {"session": "values", "ids": [1, 2, 3], "log_probs": [-0.25, -1.5, -3]},
        {"session": "eight", "ids": [10, 11, 12, 13, 14, 15, 16, 17]},
        {"session_regex": "many-[0-9]+", "turn": 2, "ids": [20, 21], "end": True},
        {"prompt_regex": r"weather\?<\|im_end\|>$", "ids": [42]},
        {"session": "once", "ids": [1], "times": 1},
        {"session": "error", "ids": [1, 2], "fault": {"kind": "error_before_first_token", "message": "no memory"}},
        {"session": "cut", "ids": [1, 2, 3], "fault": {"kind": "cut", "after": 2}},
        {"session": "stall", "ids": [1, 2, 3], "fault": {"kind": "stall", "after": 2}},
    ],
    "default": {"ids": [1, 2, 3], "end": True},
}


@asynccontextmanager
async def serving(run_dir: Path, script: dict[str, Any], **parameters: str) -> AsyncIterator[Served]:
    path, log_path = run_dir / "script.json", run_dir / "engine.jsonl"
    path.write_text(json.dumps(script))
    own = {
        "script": str(path),
        "tokenizer_dir": str(tokenizer_dir("qwen2_5")),
        "engine_log": str(log_path),
        "max_seq_len": str(MAX_SEQ_LEN),
    }
    async with (
        running_triton("scripted", run_dir, own | parameters) as triton,
        connected(triton.grpc_address, log_path) as served,
    ):
        yield served


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(tmp_path_factory.mktemp("scripted"), SCRIPT) as server:
        yield server


@pytest.fixture
async def client(served: Served) -> AsyncIterator[TritonClient]:
    async with TritonClient(served.address, EngineInfo(MODEL_NAME, LogProbMode.RAW, MAX_SEQ_LEN, VOCAB, 0)) as client:
        yield client


def request_of(
    session: str, max_tokens: int = 20, *, prompt: Sequence[int] = (1, 2, 3), **more: Any
) -> GenerateRequest:
    request_id = more.pop("request_id", f"{session}-{uuid.uuid4().hex}")
    return GenerateRequest(request_id, np.array(prompt, np.int32), max_tokens, session=session, **more)


def endless(request_id: str) -> GenerateRequest:
    return request_of("endless", ENDLESS, request_id=request_id, sampling=SamplingParams(seed=3, min_tokens=ENDLESS))


async def test_a_streamed_reply_has_the_scripts_ids_and_log_probs(served: Served) -> None:
    reply = await served.generate(request_of("values", request_id="values"))
    assert (reply.ids, reply.log_probs) == ([1, 2, 3], [-0.25, -1.5, -3.0])
    assert (reply.finish_reason, len(reply.messages)) == ("stop", 2)
    assert served.log()["values"]["log_probs"] == [-0.25, -1.5, -3.0]


async def test_text_is_encoded_with_its_special_tokens_and_ends_at_the_end_id(served: Served) -> None:
    reply = await served.generate(request_of("text", end_ids=(IM_END,)))
    assert (reply.ids, reply.finish_reason) == (GOLDEN_IDS, "stop")
    expected = np.array([log_prob(0, position, token) for position, token in enumerate(GOLDEN_IDS)], np.float32)
    assert reply.log_probs == expected.tolist()


async def test_a_rule_reads_the_end_of_the_prompt(served: Served) -> None:
    weather = [104307, 30, IM_END]  # not the rule's words
    assert (await served.generate(request_of("", prompt=weather))).ids == [1, 2, 3]
    asked = [15206, 30, IM_END]  # "weather?<|im_end|>"
    assert (await served.generate(request_of("", prompt=asked))).ids == [42]


async def test_a_rule_can_be_used_up(served: Served) -> None:
    replies = [await served.generate(request_of("once")) for _ in range(2)]
    assert [reply.ids for reply in replies] == [[1], [1, 2, 3]]


async def test_without_streaming_there_is_one_response(served: Served) -> None:
    reply = await served.generate(request_of("eight"), scalar("streaming", "BOOL", False))
    assert reply.ids_by_message == [list(range(10, 18))]
    assert len(reply.log_probs) == 8


async def test_only_what_was_asked_for_is_sent(served: Served) -> None:
    tensors = changed(request_of("eight"), scalar("return_log_probs", "BOOL", False))
    reply = await served.ask(tensors, session="eight", outputs=("output_ids", "output_log_probs", "cum_log_probs"))
    assert [set(message) for message in reply.messages] == [{"output_ids"}] * len(reply.messages)
    all_outputs = await served.ask(encode_request(request_of("eight")), session="eight", outputs=())
    cumulated = all_outputs.joined("cum_log_probs", np.float32)
    assert cumulated[-1] == pytest.approx(sum(all_outputs.log_probs), rel=1e-6)


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_prompt_comes_before_the_output_on_request(served: Served, streaming: bool) -> None:
    with_prompt = scalar("exclude_input_in_output", "BOOL", False)
    reply = await served.generate(request_of("values"), with_prompt, scalar("streaming", "BOOL", streaming))
    assert reply.ids == [1, 2, 3, 1, 2, 3]
    assert reply.log_probs == [-0.25, -1.5, -3.0]
    assert reply.joined("sequence_length", np.int32) == [len(ids) for ids in reply.ids_by_message]


async def test_a_window_of_20_ms_joins_tokens_of_7(served: Served) -> None:
    """The first at once; two by 20 ms, three by 40, and the last two with the end at 49."""
    reply = await served.generate(request_of("eight"))
    assert reply.ids_by_message == [[10], [11, 12], [13, 14, 15], [16, 17]]


async def test_a_window_of_0_sends_each_token_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, SCRIPT, coalesce_ms="0") as server:
        reply = await server.generate(request_of("eight"))
    assert reply.ids_by_message == [[token] for token in range(10, 18)]


@pytest.mark.parametrize(
    ("more", "ids", "reason"),
    [
        ({"max_tokens": 3}, [10, 11, 12], "length"),
        ({"end_ids": (99, 12)}, [10, 11, 12], "stop"),
        ({"stop_words": ((12, 13), (11, 9))}, [10, 11, 12, 13], "stop"),
        ({"end_ids": (12,), "sampling": SamplingParams(min_tokens=3)}, list(range(10, 18)), "stop"),
    ],
)
async def test_a_reply_is_cut_as_a_model_would(
    served: Served, more: dict[str, Any], ids: list[int], reason: str
) -> None:
    reply = await served.generate(request_of("eight", **more))
    assert (reply.ids, reply.finish_reason) == (ids, reason)


async def read_some(call: InferCall) -> Reply:
    """The next two messages."""
    return Reply([(await call.read(ANSWER_S)).outputs for _ in range(2)])


async def test_the_stop_tensor_cancels_and_both_requests_get_their_end(served: Served) -> None:
    request = endless("stopped")
    async with served.call(encode_request(request), "stopped", session="endless") as call:
        begun = await read_some(call)
        stop = await served.ask(changed(request, scalar("stop", "BOOL", True)), "stopped")
        rest = await rest_of(call)
    assert (stop.messages, stop.error) == ([{}], "")
    assert (rest.error, rest.finish_reason) == ("", "cancelled")
    logged = served.log()["stopped"]
    assert logged["finish_reason"] == "cancelled"
    assert 0 < len(logged["output_ids"]) < ENDLESS
    assert logged["output_ids"] == begun.ids + rest.ids
    assert logged["log_probs"] == begun.log_probs + rest.log_probs


async def test_stop_for_an_unknown_id_is_answered_empty(served: Served) -> None:
    stop = await served.ask(changed(endless("x"), scalar("stop", "BOOL", True)), "nobody")
    assert (stop.messages, stop.error) == ([{}], "")


async def test_leaving_the_call_cancels(served: Served, client: TritonClient) -> None:
    async with aclosing(client.generate(endless("left"))) as chunks:
        got = await anext(chunks)
    await until(lambda: "left" in served.log())
    logged = served.log()["left"]
    assert logged["finish_reason"] == "cancelled"
    assert logged["output_ids"][: len(got.ids)] == got.ids.tolist()
    assert len(logged["output_ids"]) < ENDLESS


async def test_a_stalled_request_that_is_left_is_cancelled(served: Served) -> None:
    async with served.call(encode_request(request_of("stall")), "stalled", session="stall") as call:
        assert (await read_some(call)).ids == [1, 2]
    await until(lambda: "stalled" in served.log())
    assert served.log()["stalled"]["finish_reason"] == "cancelled"


async def test_an_id_that_is_live_is_refused_and_free_again_after_the_end(served: Served) -> None:
    request = endless("twice")
    async with served.call(encode_request(request), "twice", session="endless") as call:
        await read_some(call)
        second = await served.generate(request)
        await served.ask(changed(request, scalar("stop", "BOOL", True)), "twice")
        assert (await rest_of(call)).finish_reason == "cancelled"
    assert second.error == "request id 'twice' is live already"
    assert (await served.generate(request_of("values", request_id="twice-free"))).ids == [1, 2, 3]


def bad_requests() -> dict[str, list[WireTensor]]:
    """By words of the refusal."""
    good = request_of("eight")
    wide = np.array([[1, 2]], np.int64)
    return {
        "temperature: nan": changed(good, scalar("temperature", "FP32", np.nan)),
        "temperature: inf": changed(good, scalar("temperature", "FP32", np.inf)),
        "temperature: -1": changed(good, scalar("temperature", "FP32", -1.0)),
        "runtime_top_p: 0": changed(good, scalar("runtime_top_p", "FP32", 0.0)),
        "runtime_top_p: 1.5": changed(good, scalar("runtime_top_p", "FP32", 1.5)),
        "runtime_top_k: -1": changed(good, scalar("runtime_top_k", "INT32", -1)),
        "repetition_penalty: 0": changed(good, scalar("repetition_penalty", "FP32", 0.0)),
        "presence_penalty: nan": changed(good, scalar("presence_penalty", "FP32", np.nan)),
        "frequency_penalty: inf": changed(good, scalar("frequency_penalty", "FP32", np.inf)),
        "min_tokens: -1": changed(good, scalar("min_tokens", "INT32", -1)),
        "min_tokens: 21": changed(good, scalar("min_tokens", "INT32", 21)),
        "end_id: 151936": changed(good, scalar("end_id", "INT32", VOCAB)),
        "request_output_len: 0": changed(good, scalar("request_output_len", "INT32", 0)),
        "input_lengths: 4": changed(good, scalar("input_lengths", "INT32", 4)),
        "input_ids: id 151936": encode_request(request_of("", prompt=[1, VOCAB])),
        "input_ids: id -1": encode_request(request_of("", prompt=[1, -1])),
        "input_ids: empty": encode_request(request_of("", prompt=[])),
        "input_ids: prompt too long": encode_request(request_of("", MAX_SEQ_LEN)),
        "stop_words_list: id 151936": changed(good, encode_word_list("stop_words_list", [[VOCAB, 1]])),
        "stop_words_list: the offsets": changed(
            good, WireTensor("stop_words_list", "INT32", (1, 2, 2), np.array([1, 2, 2, 1], np.int32).tobytes())
        ),
        "control: not JSON": changed(good, text("control", "{")),
        "control: op 'x'": changed(good, text("control", '{"op": "x"}')),
        "request_output_len: missing": changed(good, without=["request_output_len"]),
        # These Triton refuses itself: they never reach the model.
        "'input_ids'": changed(good, WireTensor("input_ids", "INT64", (1, 2), wide.tobytes())),
        "'seed'": changed(good, scalar("seed", "INT64", 3)),
        "'temperature'": changed(good, WireTensor("temperature", "FP32", (1, 2), bytes(8))),
        "batch size does not match": changed(good, WireTensor("input_ids", "INT32", (2, 3), bytes(24))),
    }


async def test_bad_requests_are_refused_and_leave_the_live_ones_unharmed(served: Served) -> None:
    names = [f"live-{index}" for index in range(4)]
    async with AsyncExitStack() as stack:
        calls = [
            await stack.enter_async_context(served.call(encode_request(endless(name)), name, session="endless"))
            for name in names
        ]
        begun = [await read_some(call) for call in calls]
        bad = bad_requests()
        refused = await asyncio.gather(*(served.ask(tensors, f"bad-{i}") for i, tensors in enumerate(bad.values())))
        going_on = [await read_some(call) for call in calls]
        for name in names:
            await served.ask(changed(endless(name), scalar("stop", "BOOL", True)), name)
        rest = [await rest_of(call) for call in calls]
    for words, reply in zip(bad, refused, strict=True):
        assert words in reply.error
        assert reply.messages == []
    for parts, name in zip(zip(begun, going_on, rest, strict=True), names, strict=True):
        ids = [token for part in parts for token in part.ids]
        log_probs = [value for part in parts for value in part.log_probs]
        assert ids == ([5, 6, 7] * len(ids))[: len(ids)]
        assert log_probs == [np.float32(log_prob(3, i, token)) for i, token in enumerate(ids)]
        assert (served.log()[name]["output_ids"], served.log()[name]["finish_reason"]) == (ids, "cancelled")
    assert not any(name.startswith("bad-") for name in served.log())


async def test_the_client_sees_a_refusal_as_one(client: TritonClient) -> None:
    with pytest.raises(EngineRejected, match="prompt too long"):
        await drain(client, request_of("", MAX_SEQ_LEN))


async def drain(client: TritonClient, request: GenerateRequest) -> list[int]:
    return [token async for chunk in client.generate(request) for token in chunk.ids.tolist()]


async def test_a_request_parameter_of_the_wrong_kind_is_refused(served: Served) -> None:
    reply = await served.ask(encode_request(request_of("eight")), session="eight", turn=-1)
    assert reply.error == "parameter turn: not an integer of at least 0"


async def test_scripted_errors(served: Served) -> None:
    before = await served.generate(request_of("error", request_id="error"))
    assert (before.messages, before.error) == ([], "the model failed: no memory")
    cut = await served.generate(request_of("cut", request_id="cut"))
    assert (cut.ids, cut.error) == ([1, 2], "the generation broke off: scripted fault: cut")
    log = served.log()
    assert (log["error"]["output_ids"], log["error"]["error"]) == ([], "no memory")
    assert (log["cut"]["output_ids"], log["cut"]["finish_reason"]) == ([1, 2], "error")


async def test_the_engine_log_is_what_the_client_got(served: Served, client: TritonClient) -> None:
    request = request_of(
        "eight", request_id="logged", turn=4, sampling=SamplingParams(temperature=0.5, seed=2**64 - 1), end_ids=(17,)
    )
    chunks = [chunk async for chunk in client.generate(request)]
    logged = served.log()["logged"]
    assert (logged["session"], logged["turn"], logged["prompt_ids"]) == ("eight", 4, [1, 2, 3])
    assert logged["output_ids"] == [token for chunk in chunks for token in chunk.ids.tolist()]
    assert logged["log_probs"] == [value for chunk in chunks for value in chunk.log_probs.tolist()]
    assert (logged["sampling"]["seed"], logged["sampling"]["temperature"]) == (2**64 - 1, 0.5)
    assert logged["versions"] == [[0, 8, 0]]
    assert chunks[-1].finished is not None
    assert chunks[-1].finished.reason is FinishReason.STOP


async def test_a_sessions_prefix_is_cached_in_blocks(served: Served) -> None:
    first = await served.generate(request_of("values", prompt=range(10)))
    again = await served.generate(request_of("values", prompt=[*range(10), 1, 2, 3, 7, 7]))
    assert (first.cached_tokens, again.cached_tokens) == (0, 12)


async def test_control(served: Served, client: TritonClient) -> None:
    stats = await client.control("stats")
    assert (stats["vocab_size"], stats["max_seq_len"], stats["weight_version"]) == (VOCAB, MAX_SEQ_LEN, 0)
    assert await client.control("update_weights", version=5) == {
        "op": "update_weights",
        "weight_version": 5,
        "path": "",
    }
    reply = await served.generate(request_of("values"))
    assert set(reply.joined("weight_version", np.int32)) == {5}
    assert await client.control("update_weights", version=0) == {
        "op": "update_weights",
        "weight_version": 0,
        "path": "",
    }
    with pytest.raises(EngineRejected, match="version is not an integer"):
        await client.control("update_weights", version="6")
    raw = await served.ask(changed(request_of(""), text("control", '{"op": "flush"}')), outputs=CONTROL_OUTPUTS)
    assert [list(message) for message in raw.messages] == [["control_reply"]]


async def test_hundreds_at_once_get_each_their_own_reply(served: Served) -> None:
    count = 250

    async def one(index: int) -> Reply:
        request = request_of(
            f"many-{index}", request_id=f"many-{index}", turn=2, end_ids=(9,), sampling=SamplingParams(seed=index)
        )
        return await served.generate(request)

    replies = await asyncio.gather(*(one(index) for index in range(count)))
    assert all(reply.ids == [20, 21, 9] for reply in replies)
    log = served.log()
    assert [log[f"many-{index}"]["log_probs"] for index in range(count)] == [reply.log_probs for reply in replies]


async def test_requests_beyond_the_slots_wait(tmp_path: Path) -> None:
    script = SCRIPT | {"timing": SCRIPT["timing"] | {"slots": 3}}
    async with serving(tmp_path, script, slots="2") as server, AsyncExitStack() as stack:
        for name in ("one", "two"):
            call = await stack.enter_async_context(server.call(encode_request(endless(name)), name, session="endless"))
            await read_some(call)
        waiting = [asyncio.create_task(server.generate(request_of("values", request_id=f"w{i}"))) for i in range(2)]
        async with TritonClient(
            server.address, EngineInfo(MODEL_NAME, LogProbMode.RAW, MAX_SEQ_LEN, VOCAB, 0)
        ) as client:
            while (stats := await client.control("stats"))["live"] < 4:
                pass
            assert (stats["slots"], stats["waiting"]) == (2, 2)
            assert server.log() == {}
            await server.ask(changed(endless("one"), scalar("stop", "BOOL", True)), "one")
            assert [(await task).ids for task in waiting] == [[1, 2, 3]] * 2
        assert list(server.log()) in (["one", "w0", "w1"], ["one", "w1", "w0"])
        assert server.log()["one"]["slot_freed_at"] <= server.log()["w0"]["slot_freed_at"]


async def test_a_scripted_crash_ends_the_models_process(tmp_path: Path) -> None:
    script = {"rules": [{"session": "crash", "ids": [1, 2], "fault": {"kind": "crash", "after": 1}}]}
    info = EngineInfo(MODEL_NAME, LogProbMode.RAW, MAX_SEQ_LEN, VOCAB, 0)
    async with serving(tmp_path, script) as server, TritonClient(server.address, info) as client:
        with pytest.raises(EngineFailed):
            await drain(client, request_of("crash"))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"rules": [{"ids": [1]}, {"ids": ["x"]}]}, r"script.json: script.rules\[1\].ids\[0\]: not a 32-bit integer"),
        ({"default": {"text": "x", "end": "yes"}}, "script.json: script.default.end: not true or false"),
    ],
)
async def test_a_malformed_script_fails_the_load_with_the_reason(
    tmp_path: Path, script: dict[str, Any], reason: str
) -> None:
    with pytest.raises(LaunchFailed, match=reason):
        async with serving(tmp_path, script):
            pytest.fail("the model loaded")


async def test_text_without_a_tokenizer_fails_the_load_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="parameter tokenizer_dir: the script has text, which needs a tokenizer"):
        async with serving(tmp_path, {"default": {"text": "x"}}, tokenizer_dir=""):
            pytest.fail("the model loaded")


async def test_guided_decoding_is_not_offered(tmp_path: Path) -> None:
    """Replies are the script's: a grammar could not change them, so none may be promised."""
    with pytest.raises(LaunchFailed, match="parameter guided_decoding: replies are the script's, so it must be none"):
        async with serving(tmp_path, {"default": {"text": "x"}}, guided_decoding="lark"):
            pytest.fail("the model loaded")
