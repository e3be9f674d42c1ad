"""The simulated client does to the history what its profiles say, and shares nothing with the server."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulated_client import (
    PROFILES,
    Head,
    Profile,
    Reminder,
    Reply,
    Results,
    Said,
    chat,
    messages,
    responses,
)
from tests.support.simulated_client.entries import Call, Thought
from tests.support.simulated_client.mangling import as_javascript

PROFILE = {profile.name: profile for profile in PROFILES}
SCHEMA = {"type": "object", "properties": {"a": {}, "b": {}}}
HEAD = Head(0, "sys", {"f": SCHEMA})
ARGUMENTS = '{"b": 1.0, "a": "\\u00e9", "c": {"z": 9007199254740993, "y": 2}}'


def history(arguments: Any, signature: str | None) -> list[Any]:
    calls = [Call(call_id, "f", arguments) for call_id in ("t1", "t2", "t3")]
    return [
        Said(1, "hi"),
        Reply(2, 1, (Thought(" plan \n", signature), " \n", *calls)),
        Results(3, [(call_id, call_id) for call_id in ("t3", "t1", "t2")], ["t1", "t2", "t3"]),
        Reminder(4, "X"),
    ]


def as_messages(profile: str | Profile, seed: int = 0) -> dict[str, Any]:
    profile = PROFILE[profile] if isinstance(profile, str) else profile
    return messages.write(HEAD, history(json.loads(ARGUMENTS), "sig"), profile, random.Random(seed))


def as_chat(profile: str, seed: int = 0) -> dict[str, Any]:
    return chat.write(HEAD, history(ARGUMENTS, None), PROFILE[profile], random.Random(seed))


def test_a_python_program_replays_what_it_got() -> None:
    body = as_messages("python sdk")
    thought, text, first, *_ = body["messages"][1]["content"]
    assert thought == {"type": "thinking", "thinking": " plan \n", "signature": "sig"}
    assert text == {"type": "text", "text": " \n"}
    assert json.dumps(first["input"]) == json.dumps(json.loads(ARGUMENTS))
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["t1", "t2", "t3"]
    assert body["messages"][0]["content"] == "hi"


def test_claude_rewrites_arguments_and_leaves_out_blanks() -> None:
    body = as_messages("claude")
    thought, first, *_ = body["messages"][1]["content"]
    assert thought["signature"] == "sig"
    assert json.dumps(first["input"]) == '{"a": "\\u00e9", "b": 1, "c": {"z": 9007199254740992, "y": 2}}'
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["t3", "t1", "t2"]


def test_the_billing_header_changes_and_the_cache_marker_moves() -> None:
    first, second = as_messages("claude", seed=1), as_messages("claude", seed=2)
    assert first["system"][0]["text"].startswith("x-anthropic-billing-header: ")
    assert first["system"][0] != second["system"][0]
    assert first["system"][1] == second["system"][1]
    assert "cache_control" in first["messages"][3]["content"][0]
    longer = [*history({}, "sig"), Said(5, "next")]
    moved = messages.write(HEAD, longer, PROFILE["claude"], random.Random(0))
    assert moved["messages"][3]["content"] == "X"
    assert "cache_control" in moved["messages"][4]["content"][0]


def test_arguments_as_text() -> None:
    (call, *_) = as_chat("simple chat")["messages"][2]["tool_calls"]
    assert call["function"]["arguments"] == ARGUMENTS
    (call, *_) = as_chat("opencode chat")["messages"][2]["tool_calls"]
    assert call["function"]["arguments"] == '{"b":1,"a":"é","c":{"z":9007199254740992,"y":2}}'


def test_what_becomes_of_thinking() -> None:
    assert as_chat("opencode chat")["messages"][2]["reasoning_content"] == " plan \n"
    assert as_chat("qwen chat")["messages"][2]["reasoning_content"] == "plan"
    assert "reasoning_content" not in as_chat("hostile chat")["messages"][2]
    unsigned = messages.write(HEAD, history({}, None), PROFILE["opencode messages"], random.Random(0))
    assert unsigned["messages"][1]["content"][0]["type"] == "text"


def as_responses(profile: str) -> dict[str, Any]:
    return responses.write(HEAD, history(ARGUMENTS, "sig"), PROFILE[profile], random.Random(0))


def test_items_as_codex_replays_them() -> None:
    system, said, thought, text, call, *_, reminder = as_responses("codex")["input"]
    assert system == {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sys"}]}
    assert said["content"] == [{"type": "input_text", "text": "hi"}]
    assert (thought["summary"][0]["text"], thought["encrypted_content"]) == (" plan \n", "sig")
    assert text["content"] == [{"type": "output_text", "text": " \n"}]
    assert call == {"type": "function_call", "call_id": "t1", "name": "f", "arguments": ARGUMENTS}
    assert reminder["role"] == "developer"
    outputs = [item["call_id"] for item in as_responses("codex")["input"] if item["type"] == "function_call_output"]
    assert outputs == ["t1", "t2", "t3"]


def test_a_reply_of_which_nothing_is_left_is_still_there() -> None:
    entries = [Said(1, "hi"), Reply(2, 1, (Thought("plan", None), " ")), Said(3, "next")]
    body = responses.write(HEAD, entries, PROFILE["hostile responses"], random.Random(0))
    assert [item["role"] for item in body["input"]] == ["developer", "user", "assistant", "user"]


def test_a_hostile_program_writes_everything_in_another_way_each_time() -> None:
    bodies = [as_messages("hostile messages", seed) for seed in range(30)]
    inputs = {json.dumps(body["messages"][1]["content"][0]["input"]) for body in bodies}
    assert len({json.dumps(json.loads(text), sort_keys=True) for text in inputs}) == 1 < len(inputs)
    orders = {tuple(block["tool_use_id"] for block in body["messages"][2]["content"]) for body in bodies}
    assert len(orders) == 6
    assert {type(body["messages"][0]["content"]) for body in bodies} == {str, list}


@pytest.mark.parametrize(
    ("value", "after"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (2**53 + 1, "9007199254740992"),
        (12345678901234567890, "12345678901234567000"),
        (10**22, "1e+22"),
        ([True, None, {"x": 2.0}], '[true, null, {"x": 2}]'),
    ],
)
def test_numbers_after_javascript(value: Any, after: str) -> None:
    assert json.dumps(as_javascript(value)) == after


def test_it_shares_nothing_with_the_server() -> None:
    folder = Path(__file__).parent / "support" / "simulated_client"
    imported = {
        name.split(".")[0]
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported
    assert not imported & {"adapter", "engine", "model_repo", "loadtest"}
