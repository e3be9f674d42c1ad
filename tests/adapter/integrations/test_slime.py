"""slime's generate function against a running adapter, with agents that are processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from adapter.integrations.agent import AgentRun
from adapter.integrations.slime import aborted_sample, agent_environment, generate, prompt_text, samples_of
from adapter.integrations.slime_settings import SlimeConfigError, SlimeSettings, session_sampling
from tests.adapter.http.conftest import Serve
from tests.adapter.integrations.slime_sample import SlimeSample
from tests.support.engine import Answer, FakeEngine
from tests.support.processes import assert_gone
from tests.support.server import TestServer
from tests.support.wait import until

AGENT = f"{sys.executable} -m tests.adapter.integrations.agents"
SAMPLING = {
    "temperature": 0.8, "top_p": 0.95, "top_k": -1, "max_new_tokens": 64, "stop": None, "stop_token_ids": None,
    "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
}  # fmt: skip


def sample(**fields: Any) -> SlimeSample:
    return SlimeSample(**{"index": 5, "group_index": 2, "prompt": "hello there", "label": "right", **fields})


def arguments(server: TestServer, command: str, **more: Any) -> Namespace:
    return Namespace(rollserve_url=server.url, rollserve_command=command, rollout_max_context_len=4096, **more)


async def sessions_left(server: TestServer) -> list[Any]:
    async with server.http.get("/v1/sessions") as response:
        return list((await response.json())["sessions"])


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_an_agents_turns_become_slimes_samples(serve: Serve, encode: Any, kind: str) -> None:
    outputs = [encode("first<|im_end|>"), encode("second<|im_end|>")]
    engine = FakeEngine([Answer([ids], log_probs=[-0.25 * (i + 1)] * len(ids)) for i, ids in enumerate(outputs)])
    given = sample(metadata={"task": 9})
    async with serve(engine) as server:
        made = await generate(arguments(server, AGENT + f" {kind} {{prompt}}"), given, dict(SAMPLING))
        assert await sessions_left(server) == []
    assert [type(each) for each in made] == [SlimeSample]
    (only,) = made
    sampled = [token for token, mask in zip(only.tokens[-only.response_length :], only.loss_mask, strict=True) if mask]
    assert sampled == [*outputs[0], *outputs[1]]
    trained = [value for value, mask in zip(only.rollout_log_probs, only.loss_mask, strict=True) if mask]
    assert trained == [-0.25] * len(outputs[0]) + [-0.5] * len(outputs[1])
    assert (only.index, only.group_index, only.rollout_id, only.prompt, only.label) == (5, 2, 5, "hello there", "right")
    assert (only.status, only.reward, only.weight_versions) == (SlimeSample.Status.COMPLETED, None, ["3"])
    assert "second" in only.response
    assert only.metadata["task"] == 9
    assert (only.metadata["agent_returncode"], only.metadata["agent_timed_out"]) == (0, False)
    assert (given.tokens, given.metadata) == ([], {"task": 9}), "the sample that slime gave is as it was"
    first = engine.requests[0]
    assert encode("hello there") == [id for id in first.prompt_ids.tolist() if id in encode("hello there")]
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (0.8, 0.95, 0)
    assert first.max_tokens == (50 if kind == "anthropic" else 64), (
        "the agent may ask for less, not for another temperature"
    )


async def test_the_prompt_is_on_standard_input_too(serve: Serve, encode: Any) -> None:
    """Prompts may be longer than an argument can be: 128 KiB."""
    engine = FakeEngine([Answer([encode("a")]), Answer([encode("b")])])
    async with serve(engine, max_context_tokens=None) as server:
        prompt = "word " * 1000
        (made,) = await generate(arguments(server, AGENT + " anthropic"), sample(prompt=prompt), {})
    assert made.status is SlimeSample.Status.COMPLETED
    assert engine.requests[0].prompt_ids.size > 1000


async def test_an_agent_that_fails_still_gives_what_it_sampled(serve: Serve, encode: Any) -> None:
    async with serve(FakeEngine([Answer([encode("a")])])) as server:
        (made,) = await generate(arguments(server, AGENT + " fail hi"), sample(), {})
    assert (made.status, made.metadata["agent_returncode"]) == (SlimeSample.Status.COMPLETED, 3)
    assert made.metadata["agent_output"] == "no luck: ü\n"


async def test_a_run_without_a_turn_is_aborted_the_way_slime_takes_it(serve: Serve) -> None:
    given = sample()
    async with serve(FakeEngine()) as server:
        (made,) = await generate(arguments(server, "true"), given, {})
        assert await sessions_left(server) == []
    assert made is given
    assert (made.tokens, made.response_length, made.loss_mask, made.rollout_log_probs) == ([0, 0], 1, [0], [0.0])
    assert (made.status, made.reward, made.remove_sample) == (SlimeSample.Status.ABORTED, 0.0, True)
    assert made.metadata == {"abort_reason": "nothing to train", "agent_returncode": 0, "agent_timed_out": False}


async def test_filters_are_handed_on(serve: Serve, encode: Any) -> None:
    engine = FakeEngine([Answer([encode("a")]), Answer([encode("b")])])
    stale = '{"max_staleness": 0, "current_version": 9}'
    async with serve(engine) as server:
        args = arguments(server, AGENT + " anthropic hi", rollserve_filters=stale)
        (made,) = await generate(args, sample(), {})
    assert (made.status, made.metadata["abort_reason"]) == (SlimeSample.Status.ABORTED, "nothing to train")


async def test_without_a_server_the_sample_is_aborted() -> None:
    (made,) = await generate(Namespace(rollserve_url="http://127.0.0.1:9", rollserve_command="true"), sample(), {})
    assert made.status is SlimeSample.Status.ABORTED
    assert "ClientConnectorError" in made.metadata["abort_reason"]


async def test_what_the_server_refuses_is_the_reason(serve: Serve) -> None:
    async with serve(FakeEngine()) as server:
        (made,) = await generate(arguments(server, "true"), sample(), {"temperature": 1000})
    assert "sampling.pinned.temperature" in made.metadata["abort_reason"]


async def test_a_cancelled_run_drops_its_session_and_kills_its_agent(serve: Serve, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with serve(FakeEngine()) as server:
        task = asyncio.create_task(generate(arguments(server, AGENT + f" hang {pids}"), sample(), {}))
        await until(lambda: pids.exists() and pids.read_text())
        assert len(await sessions_left(server)) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await sessions_left(server) == []
    assert_gone([int(pid) for pid in pids.read_text().split()])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/no/such/agent", "cannot be started"),
        ("true {metadata.repo}", r"nothing is known for \{metadata.repo\}"),
        ("true {promt}", r"nothing is known for \{promt\}"),
    ],
)
async def test_a_mistaken_command_is_an_error_and_leaves_no_session(serve: Serve, command: str, message: str) -> None:
    async with serve(FakeEngine()) as server:
        with pytest.raises(SlimeConfigError, match=message):
            await generate(arguments(server, command), sample(), {})
        assert await sessions_left(server) == []


def test_a_run_that_was_cut_short_is_truncated() -> None:
    row = {
        "tokens": [1, 2], "response": "x", "response_length": 1, "loss_mask": [1], "rollout_log_probs": [-0.5],
        "weight_versions": [], "reward": {"pass": 1}, "status": "completed", "metadata": {"sid": "s"},
    }  # fmt: skip
    (made,) = samples_of(sample(), [row], AgentRun(-9, True, "busy"))
    assert (made.status, made.reward) == (SlimeSample.Status.TRUNCATED, {"pass": 1})
    assert made.metadata == {"sid": "s", "agent_returncode": -9, "agent_timed_out": True, "agent_output": "busy"}


def test_a_rollout_id_that_slime_set_stays() -> None:
    row = dict.fromkeys(
        ["tokens", "response", "response_length", "loss_mask", "rollout_log_probs", "weight_versions", "reward"]
    )
    row |= {"status": "completed", "metadata": {}}
    (made,) = samples_of(sample(rollout_id=8), [row], AgentRun(0, False, ""))
    assert made.rollout_id == 8


def test_an_older_sample_without_the_newer_fields() -> None:
    class Old:
        def __init__(self) -> None:
            self.index, self.metadata, self.status = 1, None, SlimeSample.Status.PENDING

    made = aborted_sample(Old(), "why")
    assert made.status is SlimeSample.Status.ABORTED
    assert not hasattr(made, "remove_sample")


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("hi", "hi"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "b"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}], "a\nb"),
    ],
)  # fmt: skip
def test_prompt_text(prompt: Any, text: str) -> None:
    assert prompt_text(prompt) == text


@pytest.mark.parametrize(
    "prompt", [None, [], [{"role": "system", "content": "s"}], [{"role": "user", "content": None}]]
)
def test_a_prompt_without_a_question_is_refused(prompt: Any) -> None:
    with pytest.raises(SlimeConfigError, match="prompt"):
        prompt_text(prompt)


def test_settings_come_from_arguments_then_from_the_environment() -> None:
    environ = {"ROLLSERVE_URL": "http://a", "SLIME_ROLLSERVE_COMMAND": "x", "SLIME_ROLLSERVE_TIMEOUT_S": "7"}
    assert SlimeSettings.read(Namespace(), environ) == SlimeSettings("http://a", "x", timeout_s=7.0)
    environ["SLIME_ROLLSERVE_URL"] = "http://b"
    assert SlimeSettings.read(Namespace(rollserve_command="y"), environ).command == "y"
    assert SlimeSettings.read(Namespace(), environ).url == "http://b"
    with pytest.raises(SlimeConfigError, match="SLIME_ROLLSERVE_COMMAND"):
        SlimeSettings.read(Namespace(rollserve_url="http://a"), {})
    with pytest.raises(SlimeConfigError, match="rollserve_grace_s is 'soon'"):
        SlimeSettings.read(Namespace(rollserve_grace_s="soon"), environ)
    for filters in ("{", "[]"):
        with pytest.raises(SlimeConfigError, match="rollserve_filters"):
            _ = SlimeSettings("u", "c", filters=filters).export_filters


def test_words_are_split_before_anything_is_filled_in() -> None:
    settings = SlimeSettings("u", "agent --task '{metadata.id} of {sid}' -- {prompt}")
    values = {"metadata.id": "a b", "sid": "s", "prompt": "rm -rf / ; '{sid}'"}
    assert settings.words(values) == ["agent", "--task", "a b of s", "--", "rm -rf / ; '{sid}'"]


def test_sampling_parameters_are_honoured_or_refused() -> None:
    given = SAMPLING | {"sampling_seed": 4, "custom_params": {"return_top_p_token_ids": True}, "stop": []}
    assert session_sampling(given) == {
        "pinned": {"temperature": 0.8, "top_p": 0.95, "top_k": 0},
        "default": {"max_tokens": 64, "seed": 4},
    }
    assert session_sampling({"top_k": 20})["pinned"] == {"top_k": 20}
    for refused in ({"stop": ["x"]}, {"stop_token_ids": [1]}, {"json_schema": "{}"}, {"min_p": 0.1}):
        with pytest.raises(SlimeConfigError, match=next(iter(refused))):
            session_sampling(refused)


def test_slime_is_not_imported() -> None:
    code = "import sys, adapter.integrations.slime as module; print(sorted(name for name in sys.modules if 'slime' in name))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "['adapter.integrations.slime', 'adapter.integrations.slime_settings']"


def test_an_agent_gets_its_sessions_key_and_no_other() -> None:
    session = {"base_url": "u", "openai_base_url": "u/v1", "session_key": "rs-own"}
    environ = {"PATH": "/bin", "SLIME_ROLLSERVE_API_KEY": "the admin key", "ROLLSERVE_ADMIN_KEY": "the admin key"}
    made = agent_environment(environ, session, "the admin key")
    assert (made["ANTHROPIC_API_KEY"], made["OPENAI_API_KEY"], made["PATH"]) == ("rs-own", "rs-own", "/bin")
    assert "the admin key" not in made.values()
