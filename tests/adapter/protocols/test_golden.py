"""The wire, byte for byte, and the seed's example."""

from __future__ import annotations

import json

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.base import ManyChoices
from adapter.protocols.gemini import Gemini
from adapter.protocols.openai_chat import OpenAIChat
from adapter.types import ParsedModelOutput, ToolUse, Usage
from engine.types import FinishReason
from tests.adapter.protocols.cases import (
    CASES,
    COMPLETE,
    GOLDEN,
    PROTOCOLS,
    streamed,
    streamed_choices,
    whole,
    whole_choices,
)
from tests.support.ids import FixedIds
from tests.support.sse import data_objects


@pytest.mark.parametrize("case", COMPLETE)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whole_reply_is_the_golden_body(protocol: str, case: str) -> None:
    golden = (GOLDEN / protocol / f"{case}.json").read_bytes()
    assert whole(PROTOCOLS[protocol], CASES[case]) + b"\n" == golden


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_streamed_reply_is_the_golden_stream(protocol: str, case: str) -> None:
    golden = (GOLDEN / protocol / f"{case}.sse").read_bytes()
    assert streamed(PROTOCOLS[protocol], CASES[case]) == golden


@pytest.mark.parametrize("protocol", [OpenAIChat(), Gemini()], ids=lambda protocol: protocol.name)
def test_several_choices_are_the_golden_wire(protocol: OpenAIChat | Gemini) -> None:
    golden = GOLDEN / protocol.name
    assert whole_choices(protocol) + b"\n" == (golden / "choices.json").read_bytes()
    assert streamed_choices(protocol) == (golden / "choices.sse").read_bytes()


def test_streamed_candidates_add_up_to_the_whole_body() -> None:
    chunks = data_objects(streamed_choices(Gemini()))
    body = json.loads(whole_choices(Gemini()))
    assert [chunk for chunk in chunks if "usageMetadata" in chunk][-1] is chunks[-1]
    assert chunks[-1]["usageMetadata"] == body["usageMetadata"]
    for index, whole_candidate in enumerate(body["candidates"]):
        mine = [each for chunk in chunks for each in chunk["candidates"] if each["index"] == index]
        parts = [part for each in mine for part in each["content"]["parts"]]
        expected = whole_candidate["content"]["parts"]
        assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == [
            part["functionCall"]["args"] for part in expected if "functionCall" in part
        ]
        assert "".join(part.get("text", "") for part in parts) == "".join(part.get("text", "") for part in expected)
        assert [each["finishReason"] for each in mine if "finishReason" in each] == [whole_candidate["finishReason"]]
        chosen = [token for each in mine for token in each.get("logprobsResult", {}).get("chosenCandidates", [])]
        assert chosen == whole_candidate["logprobsResult"]["chosenCandidates"]


def test_the_sdk_folds_streamed_choices_to_the_whole_body() -> None:
    chat = OpenAIChat()
    state = ChatCompletionStreamState()
    for data in data_objects(streamed_choices(chat))[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(data))
    whole_body = ChatCompletion.model_validate_json(whole_choices(chat))
    folded = state.current_completion_snapshot
    for choice, expected in zip(folded.choices, whole_body.choices, strict=True):
        assert choice.finish_reason == expected.finish_reason
        assert choice.message.content == expected.message.content
        assert [call.function.arguments for call in choice.message.tool_calls or []] == [
            call.function.arguments for call in expected.message.tool_calls or []
        ]
        assert choice.logprobs is not None
        assert choice.logprobs == expected.logprobs
    assert folded.usage == whole_body.usage


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_golden_file_is_left_without_a_case(protocol: str) -> None:
    expected = {f"{name}.sse" for name in CASES} | {f"{name}.json" for name in COMPLETE}
    if isinstance(PROTOCOLS[protocol], ManyChoices):
        expected |= {"choices.json", "choices.sse"}
    assert {path.name for path in (GOLDEN / protocol).iterdir()} == expected


def test_the_seeds_text_reply() -> None:
    protocol = AnthropicMessages()
    parsed = ParsedModelOutput(text="这是一个学习项目。<|im_end|>")
    reply = protocol.reply(parsed, FinishReason.STOP, FixedIds())
    blocks = [{"type": "text", "text": "这是一个学习项目。<|im_end|>"}]
    assert reply.manager_message == {"role": "assistant", "content": "这是一个学习项目。<|im_end|>"}
    assert reply.finish_reason == "stop"
    assert reply.wire == (blocks, "end_turn")
    body = protocol.render_body(
        reply, reply_id=protocol.new_reply_id(FixedIds()), model="slime-actor", usage=Usage(218, 5), created=0
    )
    assert body == {
        "id": "msg_aaaaaaaaaaaaaaaaaaaaaaaa",
        "type": "message",
        "role": "assistant",
        "model": "slime-actor",
        "content": blocks,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 218, "output_tokens": 5},
    }


def test_the_seeds_tool_call() -> None:
    parsed = ParsedModelOutput(text="我先读取文件。", tool_uses=(ToolUse("read_file", {"path": "README.md"}),))
    reply = AnthropicMessages().reply(parsed, FinishReason.STOP, FixedIds())
    assert reply.manager_message == {
        "role": "assistant",
        "content": "我先读取文件。",
        "tool_calls": [{"type": "function", "function": {"name": "read_file", "arguments": {"path": "README.md"}}}],
    }
    assert reply.finish_reason == "tool_calls"
    assert reply.wire == (
        [
            {"type": "text", "text": "我先读取文件。"},
            {"type": "tool_use", "id": "toolu_aaaaaaaaaaaaaaaa", "name": "read_file", "input": {"path": "README.md"}},
        ],
        "tool_use",
    )


@pytest.mark.parametrize("case", COMPLETE)
def test_manager_message_is_the_same_for_every_protocol(case: str) -> None:
    parsed, reason = CASES[case].parsed, CASES[case].reason
    messages = [protocol.reply(parsed, reason, FixedIds()).manager_message for protocol in PROTOCOLS.values()]
    assert all(message == messages[0] for message in messages)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cancelled_generation_is_never_a_reply(protocol: str) -> None:
    with pytest.raises(ValueError, match="cancelled"):
        PROTOCOLS[protocol].reply(ParsedModelOutput(text="half"), FinishReason.CANCELLED, FixedIds())
