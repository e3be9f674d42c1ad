"""Exactness under ``keep``: whatever a client does to its history, each prompt continues what was sampled, and all is trained.

A simulated client holds random conversations over HTTP with the scripted model in a real tritonserver; the judge knows the engine's
own log, the export, and what the client really did.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support import odd_replies
from tests.support.assets import tokenizer_dir
from tests.support.exactness import Turns, check_prompts, check_training, leaves, turns_of
from tests.support.scripted import ScriptedServer, dialects, scripted_server
from tests.support.simulated_client import PROFILES, Agent, Asked, Dialect, History, Profile, Thinking
from tests.support.simulated_client.plan import Step, plans, play

SYSTEM = "You are an agent.\nBe brief."
CONVERSATIONS = 25
"""Random conversations of each profile; each takes about 0.2 s."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[ScriptedServer]:
    tokenizer = Tokenizer.from_file(str(tokenizer_dir("qwen3") / "tokenizer.json"))
    script = odd_replies.script(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    folder: Path = tmp_path_factory.mktemp("exact")
    async with scripted_server(
        folder, script, tokenizer_name="qwen3", coalesce_ms="0", served_model_name="m", dialect=request.param
    ) as server:
        yield server


async def open_agent(
    server: ScriptedServer, profile: Profile, policy: str = "keep", kind: str = "s"
) -> tuple[Agent, str]:
    """A client with a session of its own, and the session's name, which begins with ``kind``."""
    body = {"sid": f"{kind}-{uuid.uuid4().hex}", "policy": policy}
    async with server.http.post("/v1/sessions", json=body) as response:
        session = await response.json()
        assert response.status == 201, session
    agent = Agent(server.http, session["base_url"], profile)
    agent.set_head(SYSTEM, odd_replies.TOOLS)
    return agent, session["sid"]


def log_of(server: ScriptedServer, sid: str) -> list[dict[str, Any]]:
    # The log grows with every conversation of the module; most of its lines need not be read as JSON.
    lines = server.engine_log.read_text().splitlines()
    return [json.loads(line) for line in lines if sid in line]


async def finished(server: ScriptedServer, sid: str) -> dict[str, Any]:
    async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def reasons_of(server: ScriptedServer, sid: str) -> dict[int, str]:
    """The reason of each turn."""
    async with server.http.get(f"/v1/sessions/{sid}/explain") as response:
        assert response.status == 200, await response.text()
        return {turn["number"]: turn["reason"] for turn in (await response.json())["turns"]}


def check_reason(request: Asked, reason: str) -> None:
    """A replay is recognised, and only an edit or a changed head makes a branch. Nothing is asked of what goes on from a branch."""
    match request.history:
        case History.NONE:
            assert reason == "new"
        case History.KEPT:
            known = reason in ("exact", "exact:ambiguous", "handle")
            assert known or (not request.carried and reason.startswith("tolerant:")), reason
        case History.CHANGED if request.ancestor != request.relative:
            assert reason in ("fork:edit", "fork:tools", "fork:system"), reason
        case History.CHANGED:
            assert reason in ("fork:edit", "new"), reason


async def check_conversation(server: ScriptedServer, profile: Profile, steps: list[Step]) -> None:
    agent, sid = await open_agent(server, profile)
    await play(agent, steps, odd_replies.marker)
    reasons = await reasons_of(server, sid)
    export = await finished(server, sid)
    turns = turns_of(log_of(server, sid))
    check_prompts(turns, agent.asked)
    check_training(turns, export)
    assert len(export["samples"]) == leaves(agent.asked)
    for request in agent.asked:
        check_reason(request, reasons[request.turn])


@pytest.mark.parametrize("server", dialects()[:1], indirect=True, ids=str)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@settings(max_examples=CONVERSATIONS, suppress_health_check=list(HealthCheck))
@given(steps=plans(odd_replies.COUNT), seed=st.integers(0, 2**16))
async def test_random_conversations_are_kept(
    server: ScriptedServer, profile: Profile, steps: list[Step], seed: int
) -> None:
    await check_conversation(server, profile, steps)


@pytest.mark.parametrize("server", dialects()[1:], indirect=True, ids=str)
@pytest.mark.parametrize("profile", PROFILES[-2:], ids=lambda profile: profile.name)
@settings(max_examples=CONVERSATIONS, suppress_health_check=list(HealthCheck))
@given(steps=plans(odd_replies.COUNT), seed=st.integers(0, 2**16))
async def test_so_they_are_with_an_engine_of_the_other_dialect(
    server: ScriptedServer, profile: Profile, steps: list[Step], seed: int
) -> None:
    """Those that do everything at once; ``make test-dialect`` plays all."""
    await check_conversation(server, profile, steps)


TOOL_TURNS = 30
FORGETFUL = Profile("forgetful", Dialect.MESSAGES, Thinking.DROPPED)
THOUGHTS = {"short": "Next.", "long": "I wonder whether this is the file. " * 150}
"""Of a handful of tokens, and of more than the baseline's fork threshold, 1024."""


def tool_turn(kind: str, turn: int) -> dict[str, Any]:
    call = f'<tool_call>\n{{"name": "read_file", "arguments": {{"path": "{turn}.txt"}}}}\n</tool_call>'
    text = f"<think>\n{THOUGHTS[kind]}\n</think>\n\nI read file {turn}.\n{call}"
    return {"session_regex": f"{kind}-.*", "turn": turn, "text": text, "end": True}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def thinker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScriptedServer]:
    """Thinks and calls a tool ``TOOL_TURNS`` times, then is done."""
    script = {
        "rules": [tool_turn(kind, turn) for kind in THOUGHTS for turn in range(1, TOOL_TURNS + 1)],
        "default": {"text": "<think>\nThat was all.\n</think>\n\nDone.", "end": True},
    }
    folder = tmp_path_factory.mktemp("thinker")
    async with scripted_server(folder, script, tokenizer_name="qwen3", served_model_name="m") as server:
        yield server


async def tool_session(server: ScriptedServer, kind: str, policy: str) -> tuple[Agent, Turns, dict[str, Any]]:
    """A session of ``TOOL_TURNS`` tool turns and an answer: its client, its log, its export."""
    agent, sid = await open_agent(server, FORGETFUL, policy, kind)
    for _ in range(TOOL_TURNS + 1):
        agent.say("go on")
        await agent.ask()
    export = await finished(server, sid)
    return agent, turns_of(log_of(server, sid)), export


@pytest.mark.parametrize("kind", THOUGHTS)
async def test_thinking_that_a_client_forgets_costs_nothing(
    thinker: ScriptedServer, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline's rule gives a row a turn, or, for short replies, throws all but the last one away."""
    agent, turns, kept = await tool_session(thinker, kind, "keep")
    forgetful, rendered, baseline = await tool_session(thinker, kind, "template")
    with capsys.disabled():
        for policy, export in (("keep", kept), ("template", baseline)):
            print(
                f"\n{kind:6}{policy:9}{len(export['samples']):3} rows of {len(turns)} turns, {export['ledger']}", end=""
            )
    assert len(turns) == TOOL_TURNS + 1
    check_prompts(turns, agent.asked)
    check_training(turns, kept)
    assert len(kept["samples"]) == 1
    with pytest.raises(AssertionError, match="turn 2 does not continue turn 1"):
        check_prompts(rendered, forgetful.asked)
    assert baseline["ledger"]["sampled"] == kept["ledger"]["sampled"]
    if kind == "long":
        assert len(baseline["samples"]) == TOOL_TURNS + 1
    else:
        assert baseline["ledger"]["trained"] < kept["ledger"]["trained"] // 10
