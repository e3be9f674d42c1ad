"""Volatile text of requests: which rule takes what, what is kept of it, and that no rule touches anything else."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.normalise import RULES, Normaliser, RuleName
from adapter.protocols.openai_chat import OpenAIChat
from adapter.types import ChatRequest, Normalised

HEADER = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=sdk-cli;"
HI = {"role": "user", "content": "hi"}


def text(content: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **members}


def messages(without: tuple[str, ...] = (), **members: Any) -> ChatRequest:
    return AnthropicMessages().parse_request({"messages": [HI], **members}, without)


def chat(*wire: dict[str, Any], without: tuple[str, ...] = ()) -> ChatRequest:
    return OpenAIChat().parse_request({"messages": list(wire)}, without)


def test_a_billing_header_leaves_the_system_prompt_and_is_kept() -> None:
    blocks = [text(HEADER.format("a1f")), text("You are Claude Code."), text("Be brief.")]
    request = messages(system=blocks)
    assert request.messages[0] == {"role": "system", "content": "You are Claude Code.\nBe brief."}
    assert request.normalised == (Normalised("anthropic-billing-header", "system.0.text", HEADER.format("a1f")),)
    other = messages(system=[text(HEADER.format("b2e")), *blocks[1:]])
    assert other.messages == request.messages
    assert other.normalised != request.normalised


def test_a_billing_header_alone_is_no_system_prompt() -> None:
    assert messages(system=HEADER).messages == (HI,)


def test_a_billing_header_that_a_proxy_joined_to_the_prompt() -> None:
    system = HEADER + "\n\nYou are Claude Code."
    request = chat({"role": "system", "content": system}, HI)
    assert request.messages[0] == {"role": "system", "content": "You are Claude Code."}
    assert request.normalised == (Normalised("anthropic-billing-header", "messages.0.content", HEADER + "\n\n"),)
    blocks = chat({"role": "developer", "content": [text(HEADER), text("You are Claude Code.")]}, HI)
    assert blocks.messages == request.messages
    assert blocks.normalised[0].field == "messages.0.content.0.text"


@pytest.mark.parametrize(
    "system", ["You say x-anthropic-billing-header: 5", " x-anthropic-billing-header: 5", "x-anthropic-billing: 5"]
)
def test_other_text_is_no_billing_header(system: str) -> None:
    request = messages(system=system)
    assert request.messages[0]["content"] == system
    assert request.normalised == ()


def test_a_billing_header_in_a_users_words_is_theirs() -> None:
    assert messages(messages=[{"role": "user", "content": HEADER}]).messages[0]["content"] == HEADER


def calls(*call_ids: str) -> dict[str, Any]:
    wire = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": wire}


def result(call_id: str, content: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content or call_id}


def results_of(request: ChatRequest) -> list[str]:
    return [message["content"] for message in request.messages if message["role"] == "tool"]


def test_results_come_in_the_order_of_their_calls() -> None:
    request = chat(HI, calls("a", "b", "c"), result("c"), result("a"), result("b"))
    assert results_of(request) == ["a", "b", "c"]
    assert request.normalised == (Normalised("tool-result-order", "messages.2", "c a b"),)
    assert len(request.handles) == len(request.messages) == 5


def test_results_in_order_are_nothing_to_note() -> None:
    assert chat(HI, calls("a", "b"), result("a"), result("b")).normalised == ()


def test_each_run_of_results_is_ordered_for_itself() -> None:
    request = chat(HI, calls("a", "b"), result("b"), HI, result("a"), calls("c", "d"), result("d"), result("c"))
    assert results_of(request) == ["b", "a", "c", "d"]
    assert [taken.field for taken in request.normalised] == ["messages.6"]


def test_a_call_id_used_again_means_the_later_call() -> None:
    request = chat(HI, calls("a", "b"), result("a"), result("b"), calls("b", "a"), result("a", "2a"), result("b", "2b"))
    assert results_of(request) == ["a", "b", "2b", "2a"]


def test_a_call_id_used_again_changes_no_earlier_run() -> None:
    request = chat(HI, calls("a", "b"), result("b"), result("a"), calls("b", "a"), HI)
    assert results_of(request) == ["a", "b"]


def test_a_system_message_of_a_billing_header_alone_is_left_out() -> None:
    assert chat({"role": "system", "content": HEADER}, HI).messages == (HI,)
    with pytest.raises(BadRequest, match="empty"):
        chat({"role": "system", "content": HEADER})


def test_several_results_of_one_call_keep_their_order() -> None:
    assert results_of(chat(HI, calls("a", "b"), result("b", "1"), result("a"), result("b", "2"))) == ["a", "1", "2"]


def test_a_result_that_comes_twice_is_left_out_once() -> None:
    request = chat(HI, calls("a", "b"), result("a"), result("b"), result("a"), result("b"))
    assert results_of(request) == ["a", "b"]
    assert request.normalised == tuple(
        Normalised("tool-result-repeat", f"messages.{at}", name) for at, name in ((4, "a"), (5, "b"))
    )
    without = chat(HI, calls("a"), result("a"), result("a"), without=("tool-result-repeat",))
    assert results_of(without) == ["a", "a"]


def test_a_repeat_after_another_message_stays() -> None:
    assert results_of(chat(HI, calls("a"), result("a"), HI, result("a"))) == ["a", "a"]


def test_results_of_one_messages_message() -> None:
    tool_uses = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in "ab"]
    results = [{"type": "tool_result", "tool_use_id": name, "content": name} for name in "ba"]
    history = [HI, {"role": "assistant", "content": tool_uses}, {"role": "user", "content": [text("so"), *results]}]
    request = messages(messages=history)
    assert results_of(request) == ["a", "b"]
    assert request.normalised == (Normalised("tool-result-order", "messages.2.content.1", "b a"),)


def test_rules_can_be_switched_off_by_name() -> None:
    assert messages(("anthropic-billing-header",), system=HEADER).messages[0]["content"] == HEADER
    wire = (HI, calls("a", "b"), result("b"), result("a"))
    assert results_of(chat(*wire, without=("tool-result-order",))) == ["b", "a"]


@pytest.mark.parametrize("name", ["billing", "cache-markers"])
def test_only_optional_rules_can_be_switched_off(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Normaliser((name,))


def test_the_list_of_rules_is_whole() -> None:
    assert [rule.name for rule in RULES] == list(RuleName)


def test_moving_cache_markers_and_changing_forms_change_nothing() -> None:
    marker = {"cache_control": {"type": "ephemeral"}}
    marked = [text("a", **marker), text(""), text("b")]
    first = messages(system=marked, messages=[{"role": "user", "content": [text("hi", **marker)]}])
    second = messages(system="a\nb", messages=[{"role": "user", "content": "hi"}])
    assert first.messages == second.messages
    assert first.normalised == ()
