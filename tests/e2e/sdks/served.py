"""What the tests of the official SDKs share: the scripted model's lines, and what the server and the engine know afterwards."""

from __future__ import annotations

from typing import Any

from tests.support.scripted import ScriptedServer

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
CUT = {"kind": "cut", "after": 2, "message": "the reply broke off", "lasting": True}
SCRIPT = {
    "rules": [
        {"prompt_regex": "weather", "turn": 1, "text": f"I look it up.\n{CALL}", "end": True},
        {"prompt_regex": "cut me", "text": "This goes on and on and on and on.", "end": True},
        {"prompt_regex": "ponder", "text": "<think>\nLet me see.\n</think>\n\nIt is 42.", "end": True},
        {"prompt_regex": "break", "text": "Half of it", "fault": CUT},
        {"prompt_regex": "linger", "text": "Half of it", "fault": {"kind": "stall", "after": 2}},
        {"prompt_regex": "refuse", "text": "x", "fault": {"kind": "error_before_first_token"}},
    ],
    "default": {"text": "Sunny — 21 °C, 晴れ.", "end": True},
    "timing": {"time_per_output_token_ms": 2},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
SAID = "I look it up."
ARGUMENTS = {"city": "Paris", "days": 2}
TEXT = "Sunny — 21 °C, 晴れ."
THOUGHT = "Let me see."
ANSWER = "It is 42."


async def open_session(server: ScriptedServer, sid: str) -> str:
    """The session's own URL."""
    async with server.http.post("/v1/sessions", json={"sid": sid}, raise_for_status=True) as response:
        return (await response.json())["base_url"]


async def turn_count(server: ScriptedServer, sid: str) -> int:
    async with server.http.get(f"/v1/sessions/{sid}", raise_for_status=True) as response:
        return (await response.json())["turn_count"]


async def samples(server: ScriptedServer, sid: str) -> list[dict[str, Any]]:
    """The samples of a session, which is over then."""
    async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}, raise_for_status=True) as response:
        return (await response.json())["samples"]


async def reasons(server: ScriptedServer, sid: str) -> list[str]:
    """How each turn's history was recognised."""
    async with server.http.get(f"/v1/sessions/{sid}/explain", raise_for_status=True) as response:
        return [turn["reason"] for turn in (await response.json())["turns"]]


def logged(server: ScriptedServer, sid: str) -> list[dict[str, Any]]:
    """What the engine says that it sampled for a session."""
    return [entry for entry in server.logged() if entry["session"] == sid]


async def check_one_row(server: ScriptedServer, sid: str) -> None:
    """Two turns that were recognised as one conversation: one sample, with all that the engine sampled, in the engine's ids."""
    turns = logged(server, sid)
    assert [turn["turn"] for turn in turns] == [1, 2]
    assert await reasons(server, sid) == ["new", "exact"]
    (sample,) = await samples(server, sid)
    assert sample["tokens"] == turns[1]["prompt_ids"] + turns[1]["output_ids"]
    response = sample["tokens"][-sample["response_length"] :]
    trained = [token for token, mask in zip(response, sample["loss_mask"], strict=True) if mask]
    assert trained == turns[0]["output_ids"] + turns[1]["output_ids"]
