"""Calls in reasoning that is never closed: those that end the reply are calls, drafts are thoughts."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from adapter.parsing import Pipeline, PipelineOptions
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.registry import require_tool_family
from adapter.types import ParsedModelOutput, ReasoningDelta, ToolCallStart, ToolUse
from engine.types import FinishReason
from tests.adapter.parsing.marked_replies import by_text, by_tokens
from tests.adapter.parsing.replies import LOOKUP, READ_FILE
from tests.adapter.parsing.test_pipeline import IM_END, Run, fed, ids_of, run
from tests.adapter.parsing.written import FORMS
from tests.support.feeding import assert_linear

HERMES_CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=read_file>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"
USE = ToolUse("read_file", {"path": "a.txt"})
FORMATS = pytest.mark.parametrize(("parser", "call"), [("hermes", HERMES_CALL), ("xml", XML_CALL)])


def read(tokenizer: Tokenizer, text: str, parser: str, reason: FinishReason = FinishReason.STOP) -> Run:
    return fed(tokenizer, ids_of(tokenizer, text), tool_parser=parser, reasoning_parser="think", reason=reason)


@FORMATS
@pytest.mark.parametrize("ending", ["", "\n", "<|im_end|>", "\n</think>", "\n</think>\n\n<|im_end|>"])
def test_a_call_that_ends_the_reply_is_a_call(qwen3: Tokenizer, parser: str, call: str, ending: str) -> None:
    thought = "<think>\nI read it.\n"
    events, parsed, _, reasoning_tokens = read(qwen3, thought + call + ending, parser)
    assert parsed == ParsedModelOutput(reasoning="I read it.", tool_uses=(USE,))
    assert events[:2] == [ReasoningDelta("I read it."), ToolCallStart("read_file")]
    assert reasoning_tokens == len(ids_of(qwen3, thought))


@FORMATS
def test_so_are_several(qwen3: Tokenizer, parser: str, call: str) -> None:
    parsed = read(qwen3, f"<think>\nI read it twice.\n{call}\n{call}<|im_end|>", parser)[1]
    assert parsed == ParsedModelOutput(reasoning="I read it twice.", tool_uses=(USE, USE))


@FORMATS
def test_nothing_but_the_call(qwen3: Tokenizer, parser: str, call: str) -> None:
    assert read(qwen3, f"<think>\n{call}", parser)[1] == ParsedModelOutput(tool_uses=(USE,))


@FORMATS
@pytest.mark.parametrize(
    ("after", "text"),
    [
        (" would do.", ""),
        ("\n</think>\n\nDone.", "Done."),
        (" or not\n</think>\n\nDone.", "Done."),
        ("<think>", ""),
    ],
)
def test_a_draft_is_a_thought(qwen3: Tokenizer, parser: str, call: str, after: str, text: str) -> None:
    events, parsed, _, reasoning_tokens = read(qwen3, f"<think>\n{call}{after}", parser)
    thought = (call + after).partition("</think>")[0].rstrip("\n")
    assert parsed == ParsedModelOutput(reasoning=thought, text=text)
    counted = "<think>\n" + (call + after if not text else (call + after).partition("</think>")[0] + "</think>")
    assert reasoning_tokens == len(ids_of(qwen3, counted))
    assert not any(isinstance(event, ToolCallStart) for event in events)


@FORMATS
def test_a_draft_is_not_run_beside_the_call(qwen3: Tokenizer, parser: str, call: str) -> None:
    for between in ("\n</think>\n\n", " Yes.\n</think>\n\n", " Yes.\n"):
        parsed = read(qwen3, f"<think>\n{call}{between}{call}<|im_end|>", parser)[1]
        assert (parsed.tool_uses, parsed.text) == ((USE,), "")
        assert parsed.reasoning == (call + between.partition("</think>")[0]).rstrip("\n")


@FORMATS
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("read_file", "delete_all"),
        ("</tool_call>", ""),
        ("</tool_call>", "</think>"),
        ("</tool_call>", "x</tool_call>"),
    ],
)
def test_what_is_no_whole_call_of_an_offered_tool_is_a_thought(
    qwen3: Tokenizer, parser: str, call: str, old: str, new: str
) -> None:
    parsed = read(qwen3, f"<think>\n{call.replace(old, new)}", parser)[1]
    assert (parsed.tool_uses, parsed.text, parsed.ill_formed) == ((), "", False)
    assert parsed.reasoning == call.replace(old, new).replace("</think>", "").rstrip("\n")


def test_cut_off_by_the_token_limit_it_is_a_thought(qwen3: Tokenizer) -> None:
    text = f"<think>\nI read it.\n{HERMES_CALL[:40]}"
    parsed = read(qwen3, text, "hermes", FinishReason.LENGTH)[1]
    assert parsed == ParsedModelOutput(reasoning=text.removeprefix("<think>\n"))


@FORMATS
def test_text_that_spells_the_tags_is_a_thought(qwen3: Tokenizer, parser: str, call: str) -> None:
    thought = f"I read it.\n{call}"
    spelled = [id for char in thought for id in ids_of(qwen3, char)]
    ids = ids_of(qwen3, "<think>\n") + spelled
    parsed = fed(qwen3, ids, tool_parser=parser, reasoning_parser="think")[1]
    assert parsed == ParsedModelOutput(reasoning=thought)


def test_with_no_parser_configured_all_is_as_decoded(qwen3: Tokenizer) -> None:
    parsed = read(qwen3, f"<think>\n{XML_CALL}<|im_end|>", "none")[1]
    assert parsed == ParsedModelOutput(reasoning=XML_CALL + "<|im_end|>")


def test_a_thought_streams_until_a_call_opens(qwen3: Tokenizer) -> None:
    pipeline = Pipeline(
        qwen3, PipelineOptions("hermes", "think", reasoning_opened=True, end_ids=(IM_END,), tools=(READ_FILE,))
    )
    streamed = [pipeline.feed(np.array(ids_of(qwen3, text), dtype=np.int32)) for text in ("a", HERMES_CALL, "b", "c")]
    assert streamed == [[ReasoningDelta("a")], [], [ReasoningDelta(HERMES_CALL + "b")], [ReasoningDelta("c")]]


@pytest.mark.parametrize("unit", ["<tool_call>", HERMES_CALL, HERMES_CALL + "x", "<tool_call>x</tool_call></think>"])
def test_cost_is_linear(qwen3: Tokenizer, unit: str) -> None:
    ids = ids_of(qwen3, unit)

    def feed(size: int) -> None:
        tokens = ids_of(qwen3, "<think>\n") + ids * size
        run(
            qwen3,
            [[token] for token in tokens],
            tool_parser="hermes",
            reasoning_parser="think",
            tools=(LOOKUP, READ_FILE),
        )

    assert_linear(feed, 40)


def has_call_tags(parser: str) -> bool:
    family = require_tool_family(parser)
    return isinstance(family, ToolFamily) and family.call_tags is not None


FORMS_OF_ALL = sorted(name for name, form in FORMS.items() if has_call_tags(form.parser))


@pytest.mark.parametrize("form", FORMS_OF_ALL)
def test_it_holds_for_every_family_that_says_what_opens_its_calls(form: str) -> None:
    parser, call = FORMS[form].parser, FORMS[form].write([("read_file", {"path": "a.txt"})])
    meant = by_tokens(f"<think>I read it.{call}", parser, reasoning_parser="think")
    assert meant == ParsedModelOutput(reasoning="I read it.", tool_uses=(USE,))
    draft = by_tokens(f"<think>I read it.{call} Or not.</think>Done.", parser, reasoning_parser="think")
    assert draft == ParsedModelOutput(reasoning=f"I read it.{call} Or not.", text="Done.")
    spelled = by_text(f"<think>I read it.{call}", parser, reasoning_parser="think")
    assert spelled == ParsedModelOutput(reasoning=f"I read it.{call}")
