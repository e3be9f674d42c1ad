"""The probe: a model that must not be trained on is refused, with the reason and the next step."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from engine.client import ClientOptions
from engine.errors import EngineFailed, EngineUnavailable, ProbeFailed
from engine.probe import Finding, probe
from engine.types import EngineInfo, GuideKind, LogProbMode
from tests.engine.conftest import Server
from tests.engine.fake_triton import Described, Script, answer, failure, fake_triton

QUICK = ClientOptions(connect_timeout_s=0.2)


async def behave(message: Any, context: Any) -> AsyncIterator[Any]:
    yield answer(message, list(range(24)), final=True)


async def probe_fake(described: Described | None = None, script: Script = behave) -> EngineInfo:
    async with fake_triton(script, described) as address:
        return await probe(address)


async def test_a_sound_model_on_a_real_triton(server: Server) -> None:
    findings: list[Finding] = []
    info = await probe(server.address, report=findings.append)
    assert info == EngineInfo("tensorrt_llm", LogProbMode.RAW, max_seq_len=4096, vocab_size=1000, weight_version=7)
    assert [finding.subject for finding in findings] == [
        "server",
        "model",
        "log probs",
        "limits",
        "guided decoding",
        "trial",
    ]
    assert findings[-1].detail == "24 tokens, log probs from -0.5 to -0.5"


async def test_a_sound_fake_passes_so_that_the_failures_below_mean_something() -> None:
    info = await probe_fake()
    assert (info.log_prob_mode, info.max_seq_len, info.vocab_size) == (LogProbMode.PROCESSED, 4096, 1000)


async def test_a_short_context_is_respected() -> None:
    async def short(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1, 2], final=True)

    described = Described()
    described.parameters["max_seq_len"] = "10"
    assert (await probe_fake(described, short)).max_seq_len == 10


async def test_the_kinds_of_guides_are_those_that_the_model_lists() -> None:
    described = Described()
    assert (await probe_fake(described)).guides == frozenset()
    described.parameters["guided_decoding"] = "none"
    assert (await probe_fake(described)).guides == frozenset()
    described.parameters["guided_decoding"] = "json_schema,lark"
    assert (await probe_fake(described)).guides == {GuideKind.JSON_SCHEMA, GuideKind.LARK}


async def test_the_adapters_are_those_that_the_model_lists() -> None:
    described = Described()
    assert (await probe_fake(described)).loras == frozenset()
    described.parameters["loras"] = "sql=/loras/sql,law=/loras/a=b"
    assert (await probe_fake(described)).loras == {"sql", "law"}


def lists_an_unknown_guide(described: Described) -> None:
    described.parameters["guided_decoding"] = "lark,telepathy"


def lacks_an_input(described: Described) -> None:
    del described.inputs["stop_words_list"]


def lacks_the_log_probs(described: Described) -> None:
    del described.outputs["output_log_probs"]


def has_another_dtype(described: Described) -> None:
    described.outputs["output_ids"] = "INT64"


def is_the_cpp_model(described: Described) -> None:
    described.backend = "tensorrtllm"
    del described.parameters["log_probs_streaming"]
    for name in ("finish_reason", "cached_tokens", "weight_version", "control_reply"):
        del described.outputs[name]


def is_the_cpp_model_and_says_otherwise(described: Described) -> None:
    is_the_cpp_model(described)
    described.parameters["log_probs_streaming"] = "delta"


def is_the_cpp_model_without_limits(described: Described) -> None:
    is_the_cpp_model(described)
    described.parameters["normalize_log_probs"] = "false"
    del described.parameters["max_seq_len"]


def is_not_decoupled(described: Described) -> None:
    described.decoupled = False


def streams_otherwise(described: Described) -> None:
    described.parameters["log_probs_streaming"] = "backwards"


def has_an_unknown_mode(described: Described) -> None:
    described.parameters["log_prob_mode"] = "rounded"


def lacks_a_parameter(described: Described) -> None:
    del described.parameters["vocab_size"]


def has_no_number(described: Described) -> None:
    described.parameters["max_seq_len"] = "many"


def has_no_room(described: Described) -> None:
    described.parameters["max_seq_len"] = "8"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lacks_an_input, "lacks the input stop_words_list; serve one of the models"),
        (lacks_the_log_probs, "lacks the output output_log_probs; serve one of the models"),
        (has_another_dtype, "output_ids is INT64, not INT32"),
        (is_the_cpp_model, "renormalises log probs over its top k; set normalize_log_probs to false"),
        (is_the_cpp_model_and_says_otherwise, "log_probs_streaming is 'delta'; of this backend it must be cumulative"),
        (is_the_cpp_model_without_limits, "no parameter max_seq_len"),
        (is_not_decoupled, "set model_transaction_policy"),
        (streams_otherwise, "log_probs_streaming is 'backwards'; of this backend it must be delta or cumulative"),
        (has_an_unknown_mode, "'rounded'; it must be one of raw, processed"),
        (lacks_a_parameter, "no parameter vocab_size"),
        (lists_an_unknown_guide, "guided_decoding has 'telepathy'; it lists some of json, json_schema, .*, or is none"),
        (has_no_number, "max_seq_len is 'many'"),
        (has_no_room, "max_seq_len is 8, too short"),
    ],
)
async def test_a_wrong_description_is_refused(change: Callable[[Described], None], words: str) -> None:
    described = Described()
    change(described)
    with pytest.raises(ProbeFailed, match=words):
        await probe_fake(described)


async def all_zero(message: Any, context: Any) -> AsyncIterator[Any]:
    yield answer(message, list(range(24)), final=True, log_prob=0.0)


async def positive(message: Any, context: Any) -> AsyncIterator[Any]:
    yield answer(message, [1], final=True, log_prob=0.25)


async def not_a_number(message: Any, context: Any) -> AsyncIterator[Any]:
    yield answer(message, [1], final=True, log_prob=float("nan"))


async def nothing(message: Any, context: Any) -> AsyncIterator[Any]:
    yield answer(message, [], final=True)


async def refuses(message: Any, context: Any) -> AsyncIterator[Any]:
    yield failure("invalid request: I only speak text")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (all_zero, "log probs of 24 tokens sampled at temperature 1 are all 0"),
        (positive, "contradicts the contract: a log prob is not finite or is above 0"),
        (not_a_number, "contradicts the contract: a log prob is not finite"),
        (nothing, "no tokens at all"),
        (refuses, "refused a plain trial request: I only speak text"),
    ],
)
async def test_a_wrong_generation_is_refused(script: Script, words: str) -> None:
    with pytest.raises(ProbeFailed, match=words):
        await probe_fake(script=script)


async def test_a_few_zeros_are_normal() -> None:
    async def short(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1] * 15, final=True, log_prob=0.0)

    assert (await probe_fake(script=short)).model == "tensorrt_llm"


async def test_what_was_found_before_a_failure_is_reported() -> None:
    findings: list[Finding] = []
    async with fake_triton(all_zero) as address:
        with pytest.raises(ProbeFailed):
            await probe(address, report=findings.append)
    assert [finding.subject for finding in findings] == [
        "server",
        "model",
        "log probs",
        "limits",
        "guided decoding",
    ]


async def test_a_broken_generation_is_the_engines_failure() -> None:
    async def breaks(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1])
        await context.abort(grpc.StatusCode.INTERNAL, "because")

    with pytest.raises(EngineFailed, match="because"):
        await probe_fake(script=breaks)


async def test_a_server_that_is_not_there() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(EngineUnavailable, match="no Triton server answers at 127"):
            await probe(f"127.0.0.1:{nobody.getsockname()[1]}", options=QUICK)


async def test_a_model_that_is_not_served(server: Server) -> None:
    with pytest.raises(EngineUnavailable, match="does the server serve a model named nope"):
        await probe(server.address, model="nope")


async def test_a_port_that_is_not_grpc(server: Server) -> None:
    with pytest.raises(EngineUnavailable, match="is that its gRPC port"):
        await probe(server.http_address, options=QUICK)
