"""A parsed reply, put back into the history and rendered, is the text that was sampled: the next prompt holds it exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapter.parsing import choose_parsers, parse_model_output
from adapter.render.template import ChatTemplate
from adapter.types import Message, ParsedModelOutput
from tests.adapter.parsing.replies import LOOKUP, READ_FILE
from tests.support.assets import tokenizer_dir

CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "文档/a.txt", "n": [1, 2.5, null]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>'
REPLIES = (
    "Just text.",
    "Just text.\n",
    " spaced \n\n text ",
    CALL,
    f"I read it.\n{CALL}",
    f"I read it.\n\n{CALL}\n{OTHER}",
    f"{CALL}\n{OTHER}",
    "about the <tool_call> tag",
)


def template(name: str) -> ChatTemplate:
    config = json.loads((tokenizer_dir(name) / "tokenizer_config.json").read_text())
    return ChatTemplate(config["chat_template"])


def message_of(parsed: ParsedModelOutput) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.text}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_uses:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": use.name, "arguments": use.input}} for use in parsed.tool_uses
        ]
    return message


def rendered_after_parsing(model: str, reply: str) -> tuple[str, str]:
    """(the prompt and the reply, the next prompt)"""
    chat = template(model)
    choice = choose_parsers(chat.source)
    history: list[Message] = [{"role": "user", "content": "hi"}]
    tools = [LOOKUP, READ_FILE]
    sampled = chat.render(history, tools, {}) + reply + "<|im_end|>\n"
    parsed = parse_model_output(reply, tools, choice.tool_parser, choice.reasoning_parser)
    follow_up: Message = {"role": "tool", "content": "result"}
    return sampled, chat.render([*history, message_of(parsed), follow_up], tools, {})


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("model", ["qwen2_5", "qwen3"])
def test_the_next_prompt_begins_with_what_was_sampled(model: str, reply: str) -> None:
    sampled, following = rendered_after_parsing(model, reply)
    assert following.startswith(sampled)


@pytest.mark.parametrize("reply", REPLIES)
def test_with_reasoning(reply: str) -> None:
    sampled, following = rendered_after_parsing("qwen3", "<think>\nI think\n\nabout it\n</think>\n\n" + reply)
    assert following.startswith(sampled)
