"""Replies that may hold one call, or none: where they end, and what the client sees."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from adapter.parsing import Pipeline, PipelineOptions, StopHit
from adapter.parsing.reply import merged
from adapter.types import ParsedModelOutput, ReplyEvent, ToolUse
from engine.types import FinishReason
from tests.adapter.parsing.replies import LOOKUP, READ_FILE, assert_events_make
from tests.support.feeding import same_however_fed

IM_END = 151645
A = '<tool_call>\n{"name": "lookup", "arguments": {"q": "a"}}\n</tool_call>'
B = '<tool_call>\n{"name": "lookup", "arguments": {"q": "b"}}\n</tool_call>'
XML = "<tool_call>\n<function=lookup>\n<parameter=q>\na\n</parameter>\n</function>\n</tool_call>"
USE_A, USE_B = ToolUse("lookup", {"q": "a"}), ToolUse("lookup", {"q": "b"})

Run = tuple[list[ReplyEvent], ParsedModelOutput, StopHit | None, int]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def read(tokenizer: Tokenizer, text: str, max_calls: int, tool_parser: str = "hermes", **more: str) -> Run:
    options = PipelineOptions(
        tool_parser,
        tools=(LOOKUP, READ_FILE),
        end_ids=(IM_END,),
        max_calls=max_calls,
        **more,  # type: ignore[arg-type]
    )

    def run(pieces: list[list[int]]) -> Run:
        pipeline = Pipeline(tokenizer, options)
        events = [event for piece in pieces for event in pipeline.feed(np.array(piece, dtype=np.int32))]
        events += pipeline.finish(FinishReason.STOP)
        return merged(events), pipeline.output(), pipeline.stopped, pipeline.tokens

    result = same_however_fed(run, ids_of(tokenizer, text))
    assert_events_make(result[0], result[1])
    return result


@pytest.mark.parametrize("between", ["", "\n", "\n\n ", "\nAnd "])
@pytest.mark.parametrize(("first", "parser"), [(A, "hermes"), (XML, "xml"), (XML, "none"), (XML, "hermes")])
def test_a_reply_ends_behind_its_last_call_and_what_closes_it(
    qwen: Tokenizer, first: str, parser: str, between: str
) -> None:
    _, output, stopped, tokens = read(qwen, f"I look.\n{first}{between}{B}<|im_end|>", 1, parser)
    assert output == ParsedModelOutput(text="I look.", tool_uses=(USE_A,))
    kept = ids_of(qwen, f"I look.\n{first}")
    assert stopped == StopHit(None, len(kept))
    assert tokens == len(kept)


def test_text_behind_the_last_call_is_no_part_of_the_reply(qwen: Tokenizer) -> None:
    _, output, stopped, _ = read(qwen, f"{A}\nI wait.<|im_end|>", 1)
    assert output == ParsedModelOutput(tool_uses=(USE_A,))
    assert stopped == StopHit(None, len(ids_of(qwen, A)))


def test_a_call_that_is_not_closed_ends_where_it_does(qwen: Tokenizer) -> None:
    _, output, stopped, _ = read(qwen, A.removesuffix("\n</tool_call>") + f"\n{B}<|im_end|>", 1)
    assert output.tool_uses == (USE_A,)
    assert stopped is not None
    assert qwen.decode(ids_of(qwen, A)[: stopped.tokens]).rstrip().endswith("}}")


@pytest.mark.parametrize("text", [A, f"{A}<|im_end|>", f"{A}\n<|im_end|>", "No call.<|im_end|>", A[:-20]])
def test_a_reply_that_ends_by_itself_is_as_without_a_limit(qwen: Tokenizer, text: str) -> None:
    events, output, stopped, _ = read(qwen, text, 1)
    free_events, free_output, _, _ = read(qwen, text, 99)
    assert (events, output, stopped) == (free_events, free_output, None)


def test_the_limit_may_be_higher(qwen: Tokenizer) -> None:
    _, output, stopped, _ = read(qwen, f"{A}\n{B}\n{A}<|im_end|>", 2)
    assert output.tool_uses == (USE_A, USE_B)
    assert stopped == StopHit(None, len(ids_of(qwen, f"{A}\n{B}")))


def test_a_call_in_the_reasoning_does_not_count(qwen3: Tokenizer) -> None:
    text = f"<think>\n{A}\n</think>\n\n{B}\n{A}<|im_end|>"
    _, output, stopped, _ = read(qwen3, text, 1, reasoning_parser="think")
    assert output.tool_uses == (USE_B,)
    assert stopped == StopHit(None, len(ids_of(qwen3, f"<think>\n{A}\n</think>\n\n{B}")))


@pytest.mark.parametrize(("call", "parser"), [(A, "hermes"), (XML, "xml"), (XML, "none")])
def test_without_calls_what_spells_one_is_text(qwen: Tokenizer, call: str, parser: str) -> None:
    _, output, stopped, _ = read(qwen, f"Look.\n{call}<|im_end|>", 0, parser)
    end = "<|im_end|>" if parser == "none" else ""
    assert output == ParsedModelOutput(text=f"Look.\n{call}{end}")
    assert stopped is None


def test_without_calls_there_is_still_reasoning(qwen3: Tokenizer) -> None:
    _, output, _, _ = read(qwen3, f"<think>\nhm\n</think>\n\n{A}<|im_end|>", 0, reasoning_parser="think")
    assert output == ParsedModelOutput(reasoning="hm", text=A)


def test_a_parser_that_reads_whole_replies_shows_calls_as_json(qwen: Tokenizer) -> None:
    call = '<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{"q": "a"}<|call|>'
    text = f"<|channel|>final<|message|>So.<|end|><|start|>assistant{call}"
    _, output, _, _ = read(qwen, text, 0, "gpt_oss")
    assert output.tool_uses == ()
    assert output.text.endswith('{"name": "lookup", "arguments": {"q": "a"}}')
