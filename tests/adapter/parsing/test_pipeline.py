"""Ids in, events out: the seed's replies, stop strings at token boundaries, end tokens, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from adapter.parsing import (
    Markers,
    ParserChoice,
    Pipeline,
    PipelineOptions,
    StopHit,
    UnknownParser,
    parse_model_output,
)
from adapter.parsing.reply import merged
from adapter.types import ParsedModelOutput, ReasoningDelta, ReplyEvent, TextDelta, ToolCallEnd, ToolCallStart, ToolUse
from engine.types import FinishReason
from tests.adapter.parsing.replies import LOOKUP, READ_FILE, assert_events_make
from tests.support.feeding import assert_linear, same_however_fed

SEED_IDS = [105464, 100134, 73345, 1773, 151645]
SEED_CALL = "我先读取文件。<tool_call><function=read_file><parameter=path>README.md</parameter></function></tool_call>"
IM_END = 151645
JSON_CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "读我.md"}}\n</tool_call>'


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


Run = tuple[list[ReplyEvent], ParsedModelOutput, StopHit | None, int]


def run(tokenizer: Tokenizer, pieces: Sequence[Any], reason: FinishReason = FinishReason.STOP, **options: Any) -> Run:
    options = {"end_ids": (IM_END,), "tools": (LOOKUP, READ_FILE)} | options
    pipeline = Pipeline(tokenizer, PipelineOptions(**options))
    batches = [pipeline.feed(np.array(piece, dtype=np.int32)) for piece in pieces] + [pipeline.finish(reason)]
    for batch in batches:
        assert batch == merged(batch)
    events = merged([event for batch in batches for event in batch])
    return events, pipeline.output(), pipeline.stopped, pipeline.reasoning_tokens


def fed(tokenizer: Tokenizer, ids: list[int], **options: Any) -> Run:
    result = same_however_fed(lambda pieces: run(tokenizer, pieces, **options), ids)
    assert_events_make(result[0], result[1])
    return result


def output(tokenizer: Tokenizer, text: str, **options: Any) -> ParsedModelOutput:
    return fed(tokenizer, ids_of(tokenizer, text), **options)[1]


def test_the_seeds_reply(qwen: Tokenizer) -> None:
    events, parsed, stopped, reasoning_tokens = fed(qwen, SEED_IDS)
    assert events == [TextDelta("这是一个学习项目。<|im_end|>")]
    assert parsed == ParsedModelOutput(text="这是一个学习项目。<|im_end|>")
    assert (stopped, reasoning_tokens) == (None, 0)


@pytest.mark.parametrize("ending", ["", "<|im_end|>", "\n<|im_end|>"])
def test_the_seeds_tool_call(qwen: Tokenizer, ending: str) -> None:
    call = ToolUse("read_file", {"path": "README.md"})
    assert output(qwen, SEED_CALL + ending) == ParsedModelOutput(text="我先读取文件。", tool_uses=(call,))


def test_text_behind_a_call_keeps_its_end_token_with_none(qwen: Tokenizer) -> None:
    assert output(qwen, SEED_CALL + " 好<|im_end|>").text == "我先读取文件。 好<|im_end|>"


@pytest.mark.parametrize("parser", ["xml", "hermes"])
def test_other_parsers_take_the_end_token_away(qwen: Tokenizer, parser: str) -> None:
    assert fed(qwen, SEED_IDS, tool_parser=parser)[0] == [TextDelta("这是一个学习项目。")]


@pytest.mark.parametrize("parser", ["none", "xml", "hermes"])
def test_only_the_last_token_is_the_end_token(qwen: Tokenizer, parser: str) -> None:
    parsed = fed(qwen, [IM_END, 1773, IM_END, IM_END], tool_parser=parser)[1]
    assert parsed.text == "<|im_end|>。<|im_end|>" + ("<|im_end|>" if parser == "none" else "")


def test_an_end_token_that_ended_nothing_is_text(qwen: Tokenizer) -> None:
    parsed = fed(qwen, [1773, IM_END], tool_parser="hermes", reason=FinishReason.LENGTH)[1]
    assert parsed.text == "。<|im_end|>"


@pytest.mark.parametrize("parser", ["none", "xml", "hermes"])
@pytest.mark.parametrize("ids", [[], [IM_END]])
def test_empty_replies(qwen: Tokenizer, parser: str, ids: list[int]) -> None:
    events, parsed, *_ = fed(qwen, ids, tool_parser=parser)
    text = "<|im_end|>" if ids and parser == "none" else ""
    assert (events, parsed) == ([TextDelta(text)] if text else [], ParsedModelOutput(text=text))


def test_reasoning_text_and_call(qwen3: Tokenizer) -> None:
    text = f"<think>\n想想\n</think>\n\nI read it.\n{JSON_CALL}<|im_end|>"
    events, parsed, _, reasoning_tokens = fed(
        qwen3, ids_of(qwen3, text), tool_parser="hermes", reasoning_parser="think"
    )
    call = ToolUse("read_file", {"path": "读我.md"})
    assert parsed == ParsedModelOutput(reasoning="想想", text="I read it.", tool_uses=(call,))
    assert events[:3] == [ReasoningDelta("想想"), TextDelta("I read it."), ToolCallStart("read_file")]
    assert events[-1] == ToolCallEnd(call)
    assert reasoning_tokens == len(ids_of(qwen3, "<think>\n想想\n</think>"))


def test_reasoning_that_never_ends_counts_all_its_tokens(qwen3: Tokenizer) -> None:
    ids = ids_of(qwen3, "thinking on and on")
    _, parsed, _, reasoning_tokens = fed(
        qwen3, [*ids, IM_END], tool_parser="hermes", reasoning_parser="think", reasoning_opened=True
    )
    assert (parsed.reasoning, reasoning_tokens) == ("thinking on and on", len(ids))


def test_a_stop_string_cuts_text_and_says_at_which_token(qwen: Tokenizer) -> None:
    ids = ids_of(qwen, "one two STOP three four")
    consumed = next(n for n in range(len(ids)) if "STOP" in qwen.decode(ids[:n]))
    _, parsed, stopped, _ = fed(qwen, ids, stop=("nowhere", "STOP"), tool_parser="hermes")
    assert parsed == ParsedModelOutput(text="one two ", stop_sequence="STOP")
    assert stopped == StopHit("STOP", consumed)
    assert consumed < len(ids)


def test_a_stop_string_inside_a_token_and_over_tokens(qwen: Tokenizer) -> None:
    ids = [105464, 100134, 73345, 1773]  # 这是一个 | 学习 | 项目 | 。
    assert fed(qwen, ids, stop=("一",), tool_parser="xml")[1:3] == (
        ParsedModelOutput(text="这是", stop_sequence="一"),
        StopHit("一", 1),
    )
    assert fed(qwen, ids, stop=("习项",), tool_parser="xml")[1:3] == (
        ParsedModelOutput(text="这是一个学", stop_sequence="习项"),
        StopHit("习项", 3),
    )


def test_a_stop_string_that_the_last_token_completes(qwen: Tokenizer) -> None:
    _, parsed, stopped, _ = fed(qwen, SEED_IDS, stop=("<|im_end|>",))
    assert (parsed.text, stopped) == ("这是一个学习项目。", StopHit("<|im_end|>", 5))


def test_an_end_token_that_is_not_shown_completes_no_stop_string(qwen: Tokenizer) -> None:
    _, parsed, stopped, _ = fed(qwen, SEED_IDS, stop=("<|im_end|>",), tool_parser="hermes")
    assert (parsed.text, stopped) == ("这是一个学习项目。", None)


def test_a_beginning_of_a_stop_string_at_the_end_is_text(qwen: Tokenizer) -> None:
    assert output(qwen, "this is the e", stop=("the end",), tool_parser="xml") == ParsedModelOutput(
        text="this is the e"
    )


def test_an_unfinished_character_completes_a_stop_string_at_the_end(qwen: Tokenizer) -> None:
    ids = ids_of(qwen, "ok 😵")[:-1]
    _, parsed, stopped, _ = fed(qwen, ids, stop=("\ufffd",), reason=FinishReason.LENGTH)
    assert (parsed.text, stopped) == ("ok ", StopHit("\ufffd", len(ids)))


def test_a_stop_string_inside_a_call_leaves_nothing_half(qwen: Tokenizer) -> None:
    parsed = output(qwen, JSON_CALL, stop=("我",), tool_parser="hermes")
    assert parsed == ParsedModelOutput(
        tool_uses=(ToolUse("read_file", {"path": None}),), ill_formed=True, stop_sequence="我"
    )


def test_text_leaves_with_the_token_that_brings_it(qwen: Tokenizer) -> None:
    pipeline = Pipeline(qwen, PipelineOptions(tool_parser="hermes", end_ids=(IM_END,)))
    seen = [pipeline.feed(np.array([token], dtype=np.int32)) for token in SEED_IDS]
    assert seen == [[TextDelta("这是一个")], [TextDelta("学习")], [TextDelta("项目")], [TextDelta("。")], []]


def test_a_delta_of_one_feed_is_one_event(qwen: Tokenizer) -> None:
    pipeline = Pipeline(qwen, PipelineOptions())
    assert pipeline.feed(np.array(SEED_IDS, dtype=np.int32)) == [TextDelta("这是一个学习项目。<|im_end|>")]


def test_options_for_a_reply_look_at_the_prompt() -> None:
    parsers = ParserChoice("hermes", "think")
    tail = "...assistant\n<think>\n"
    markers = Markers()
    options = PipelineOptions.for_reply(parsers, markers, prompt_tail=tail, end_ids=(7,), stop=("x",), tools=(LOOKUP,))
    assert options == PipelineOptions("hermes", "think", True, (7,), ("x",), (LOOKUP,), tail, markers)
    assert not PipelineOptions.for_reply(parsers, markers, prompt_tail="...assistant\n").reasoning_opened


@pytest.mark.parametrize("options", [{"tool_parser": "x"}, {"reasoning_parser": "x"}])
def test_an_unknown_parser(qwen: Tokenizer, options: dict[str, str]) -> None:
    with pytest.raises(UnknownParser):
        Pipeline(qwen, PipelineOptions(**options))


SCRAPS = [
    "<think>",
    "</think>",
    "\n",
    "<tool_call>",
    "</tool_call>",
    '{"name": "read_file", "arguments": {"path": "',
    '"}}',
]
SCRAPS += [
    "<function=lookup>",
    "<parameter=q>",
    "</parameter></function>",
    "😵‍💫",
    "学习",
    " word",
    "<|im_end|>",
    "STOP",
    "ST",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
@given(data=st.data())
def test_token_by_token_is_the_whole(qwen3: Tokenizer, data: st.DataObject) -> None:
    ids = ids_of(qwen3, "".join(data.draw(st.lists(st.sampled_from(SCRAPS), max_size=12))))
    ids += data.draw(st.lists(st.integers(0, qwen3.get_vocab_size() - 1), max_size=3))
    tool_parser = data.draw(st.sampled_from(["none", "xml", "hermes"]))
    reasoning_parser = data.draw(st.sampled_from(["none", "think"]))
    stop = data.draw(st.sampled_from([(), ("STOP",)]))
    _, parsed, stopped, _ = fed(qwen3, ids, tool_parser=tool_parser, reasoning_parser=reasoning_parser, stop=stop)
    if stopped is None:
        shown = ids[:-1] if ids[-1:] == [IM_END] else ids
        raw = qwen3.decode(shown, skip_special_tokens=False)
        expected = parse_model_output(raw, (LOOKUP, READ_FILE), tool_parser, reasoning_parser)
        may_be_unclosed = reasoning_parser == "think" and "<think>" in raw  # there tokens and text differ
        if (shown == ids or tool_parser != "none") and not may_be_unclosed:
            assert parsed == expected
    else:
        raw = qwen3.decode(ids[: stopped.tokens], skip_special_tokens=False)
        assert raw.count("STOP") == 1
        assert "STOP" not in qwen3.decode(ids[: stopped.tokens - 1], skip_special_tokens=False)


@pytest.mark.parametrize("stop", [(), ("never in there",)])
def test_a_long_reply_costs_what_its_tokens_cost(qwen3: Tokenizer, stop: tuple[str, ...]) -> None:
    unit = ids_of(qwen3, f"Some words, 一些字 😀\n{JSON_CALL}\n<tool_call> in prose ")

    def feed(size: int) -> None:
        ids = ids_of(qwen3, "<think>\nhm\n</think>\n\n") + unit * size
        run(qwen3, [[token] for token in ids], tool_parser="hermes", reasoning_parser="think", stop=stop)

    assert_linear(feed, 20)


def test_parse_model_output_of_the_seed() -> None:
    assert parse_model_output("这是一个学习项目。<|im_end|>", [READ_FILE], None, None) == ParsedModelOutput(
        text="这是一个学习项目。<|im_end|>"
    )
    assert parse_model_output(SEED_CALL, [READ_FILE], None, None) == ParsedModelOutput(
        text="我先读取文件。", tool_uses=(ToolUse("read_file", {"path": "README.md"}),)
    )


def test_parse_model_output_of_the_baseline() -> None:
    assert parse_model_output("just text", None) == ParsedModelOutput(text="just text")
    assert parse_model_output("<think>reason here</think>visible", None, None, "qwen3") == ParsedModelOutput(
        reasoning="reason here", text="visible"
    )
    call = "<tool_call><function=lookup><parameter=q>slime</parameter></function></tool_call>"
    assert parse_model_output(f"lead {call} tail", [LOOKUP]) == ParsedModelOutput(
        text="lead  tail", tool_uses=(ToolUse("lookup", {"q": "slime"}),)
    )
    assert parse_model_output(f"lead {call} tail", [READ_FILE]) == ParsedModelOutput(text=f"lead {call} tail")
    assert parse_model_output("reason</think>v", None, None, "think", reasoning_opened=True).reasoning == "reason"
