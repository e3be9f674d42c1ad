"""The official JavaScript SDKs against the adapter, on the scripted model in a real tritonserver: what the scripts saw is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.sdks.served import (
    ANSWER,
    ARGUMENTS,
    SAID,
    TEXT,
    THOUGHT,
    check_one_row,
    logged,
    open_session,
    reasons,
    turn_count,
)
from tests.support.javascript import play
from tests.support.scripted import ScriptedServer
from tests.support.wait import until

SCRIPTS = {"anthropic": "a", "openai_chat": "o", "openai_responses": "r", "google_genai": "g"}
"""Script -> the letter in the names of its sessions, ``js-LETTER-SCENARIO``."""

STOPS = {"anthropic": "tool_use", "openai_chat": "tool_calls", "openai_responses": "completed", "google_genai": "STOP"}
IN_SESSIONS = ("loop", "runner", "chat")
"""Scenarios that name their session by its URL."""

Seen = dict[str, dict[str, Any]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def seen(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """By script, what its scenarios saw."""
    made: Seen = {}
    for script, letter in SCRIPTS.items():
        for scenario in IN_SESSIONS:
            await open_session(server, f"js-{letter}-{scenario}")
        folder: Path = tmp_path_factory.mktemp(f"js_{script}")
        made[script] = await play(script, server.url, folder)
    return made


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_tool_loop(server: ScriptedServer, seen: Seen, script: str) -> None:
    loop = seen[script]["loop"]
    assert (loop["text"].strip(), loop["input"], loop["reply"]) == (SAID, ARGUMENTS, TEXT)
    assert loop["stop"] == STOPS[script]
    await check_one_row(server, f"js-{SCRIPTS[script]}-loop")


@pytest.mark.parametrize("script", ["anthropic", "openai_chat"])
async def test_the_sdks_own_tool_runner(server: ScriptedServer, seen: Seen, script: str) -> None:
    assert seen[script]["runner"] == {"asked": [ARGUMENTS], "reply": TEXT}
    await check_one_row(server, f"js-{SCRIPTS[script]}-runner")


@pytest.mark.parametrize("script", ["anthropic", "openai_chat", "openai_responses"])
def test_reasoning(seen: Seen, script: str) -> None:
    thinking = seen[script]["thinking"]
    assert (thinking["thought"].strip(), thinking["text"]) == (THOUGHT, ANSWER)
    assert thinking.get("signed", True)


async def test_a_chat_of_google_genai_replays_thoughts(server: ScriptedServer, seen: Seen) -> None:
    chat = seen["google_genai"]["chat"]
    assert (chat["thought"].strip(), chat["text"], chat["reply"]) == (THOUGHT, ANSWER, ANSWER)
    assert await reasons(server, "js-g-chat") == ["new", "exact"]


def test_usage(seen: Seen) -> None:
    """Streamed and whole replies to the same prompt, the second of which the engine has in its cache."""
    anthropic = seen["anthropic"]["usage"]
    assert anthropic["counted"] == anthropic["whole"]["input_tokens"]
    assert anthropic["streamed"]["cache_read_input_tokens"] > 0
    chat, responses = seen["openai_chat"]["usage"], seen["openai_responses"]["usage"]
    assert chat["streamed"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert responses["streamed"]["input_tokens_details"]["cached_tokens"] > 0
    google = seen["google_genai"]["usage"]
    assert google["counted"] == google["whole"]["promptTokenCount"]
    assert google["streamed"]["cachedContentTokenCount"] > 0
    assert google["text"] == TEXT
    for whole, streamed, name in (
        (chat["whole"], chat["streamed"], "total_tokens"),
        (responses["whole"], responses["streamed"], "total_tokens"),
        (google["whole"], google["streamed"], "totalTokenCount"),
        (anthropic["whole"], anthropic["streamed"], "output_tokens"),
    ):
        assert whole[name] == streamed[name] > 0


def test_a_response_is_read_again_from_any_event(seen: Seen) -> None:
    again = seen["openai_responses"]["again"]
    assert again["again"] == again["first"]
    assert again["again"][-1]["type"] == "response.completed"


@pytest.mark.parametrize("script", SCRIPTS)
async def test_an_abort_frees_the_engines_slot(server: ScriptedServer, seen: Seen, script: str) -> None:
    sid = f"js-{SCRIPTS[script]}-abort"
    assert "abort" in seen[script]["abort"]["message"]
    await until(lambda: logged(server, sid))
    (entry,) = logged(server, sid)
    assert entry["finish_reason"] == "cancelled"
    assert await turn_count(server, sid) == 0


@pytest.mark.parametrize("script", SCRIPTS)
async def test_errors(server: ScriptedServer, seen: Seen, script: str) -> None:
    errors = seen[script]["errors"]
    assert errors["model"]["status"] == 404
    assert "there is no model 'x'" in errors["model"]["message"]
    assert errors["field"]["status"] == 400
    assert any(name in errors["field"]["message"] for name in ("tool_choice", "logit_bias", "toolConfig"))
    assert errors["engine"]["status"] in (400, 500, 502, 503)
    # OpenAI's SDK goes on after response.failed until the connection breaks off, and says that.
    broken = "terminated" if script == "openai_responses" else "broke off"
    assert broken in errors["cut"]["message"]
    assert await turn_count(server, f"js-{SCRIPTS[script]}-errors") == 0
