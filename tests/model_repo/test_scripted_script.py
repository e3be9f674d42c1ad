"""The script file: what it may say, and that a mistake is named by rule and field."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from common.replies import FinishReason

from model_repo.scripted.script import Fault, FaultKind, Script, ScriptError, Timing, parse_script


def encode(text: str) -> list[int]:
    """A tokenizer with one id for each character."""
    return [ord(character) for character in text]


def parse(document: Any, **timing: float) -> Script:
    return parse_script(document, encode, timing)


def test_a_script_with_everything() -> None:
    text = """{
      "timing": {"prefill_tokens_per_s": 1000, "time_per_output_token_ms": 2.5, "jitter": 0.1, "slots": 4,
                 "block_size": 8, "kv_cache_tokens": 100},
      "tail_tokens": 99,
      "rules": [
        {"session": "s", "turn": 1, "ids": [1, 2], "end": true, "log_probs": [-1, NaN, -Infinity], "times": 2},
        {"session_regex": "a.*", "prompt_regex": "weather", "text": "hi", "finish_reason": "length",
         "fault": {"kind": "stall", "after": 1, "seconds": 0.5}}
      ],
      "default": {"text": "", "fault": {"kind": "error_before_first_token", "message": "no"}}
    }"""
    script = parse(json.loads(text))
    first, second = script.rules
    assert (first.session, first.turn, first.times) == ("s", 1, 2)
    assert (first.reply.ids, first.reply.end, first.reply.finish_reason) == ((1, 2), True, FinishReason.STOP)
    assert first.reply.log_probs is not None
    assert first.reply.log_probs[0] == -1
    assert math.isnan(first.reply.log_probs[1])
    assert second.session_regex is not None
    assert second.prompt_regex is not None
    assert (second.reply.ids, second.reply.finish_reason) == ((104, 105), FinishReason.LENGTH)
    assert second.reply.fault == Fault(FaultKind.STALL, 1, 0.5, "scripted fault: stall")
    assert script.default is not None
    assert script.default.fault == Fault(FaultKind.ERROR_BEFORE_FIRST_TOKEN, 0, None, "no")
    assert script.timing == Timing(1000, 2.5, 0.1, 4, 8, 100)
    assert (script.tail_tokens, script.reads_prompts) == (99, True)


def test_an_empty_script_is_instant_and_answers_nothing() -> None:
    script = parse({})
    assert (script.rules, script.default, script.reads_prompts) == ((), None, False)
    assert (script.timing.prefill_tokens_per_s, script.timing.time_per_output_token_ms, script.timing.slots) == (
        0,
        0,
        0,
    )


def test_a_timing_parameter_counts_more_than_the_script() -> None:
    script = parse({"timing": {"slots": 4, "jitter": 0.5}}, slots=2.0, block_size=4.0)
    assert (script.timing.slots, script.timing.jitter, script.timing.block_size) == (2, 0.5, 4)


def rule(**fields: Any) -> dict[str, Any]:
    """A script whose second rule has ``fields``."""
    return {"rules": [{"ids": []}, {"ids": [1]} | fields]}


MISTAKES = [
    ([], "script: not an object"),
    ({"rule": []}, "script.rule: unknown; known are default, rules, tail_tokens, timing"),
    ({"rules": {}}, "script.rules: not a list"),
    ({"rules": [3]}, r"script.rules\[0\]: not an object"),
    ({"rules": [{}]}, r"script.rules\[0\].text: give either ids or text"),
    (rule(text="x"), r"script.rules\[1\].text: give either ids or text"),
    (rule(ids="12"), r"script.rules\[1\].ids: not a list"),
    (rule(ids=[1, "2"]), r"script.rules\[1\].ids\[1\]: not a 32-bit integer"),
    (rule(ids=[2**31]), r"script.rules\[1\].ids\[0\]: not a 32-bit integer"),
    (rule(ids=[True]), r"script.rules\[1\].ids\[0\]: not a 32-bit integer"),
    (rule(ids=None, text=3), r"script.rules\[1\].text: not a text"),
    (rule(end=1), r"script.rules\[1\].end: not true or false"),
    (rule(log_probs=[-1, -2]), r"script.rules\[1\].log_probs: 2 numbers for 1 ids"),
    (rule(log_probs=[-1], end=True), r"script.rules\[1\].log_probs: 1 numbers for 2 ids"),
    (rule(log_probs=["x"]), r"script.rules\[1\].log_probs\[0\]: not a number"),
    (rule(finish_reason="done"), r"script.rules\[1\].finish_reason: not one of stop, length, cancelled"),
    (rule(session=3), r"script.rules\[1\].session: not a text"),
    (rule(session_regex="("), r"script.rules\[1\].session_regex: not a regular expression"),
    (rule(prompt_regex="["), r"script.rules\[1\].prompt_regex: not a regular expression"),
    (rule(turn=-1), r"script.rules\[1\].turn: not an integer of at least 0"),
    (rule(turn="1"), r"script.rules\[1\].turn: not an integer"),
    (rule(times=0), r"script.rules\[1\].times: not an integer of at least 1"),
    (rule(times=1.5), r"script.rules\[1\].times: not an integer"),
    (rule(reply={}), r"script.rules\[1\].reply: unknown"),
    (rule(fault="crash"), r"script.rules\[1\].fault: not an object"),
    (rule(fault={}), r"script.rules\[1\].fault.kind: not one of error_before_first_token, cut, stall, crash"),
    (rule(fault={"kind": "cut", "after": 2}), r"script.rules\[1\].fault.after: not an integer between 0 and 1"),
    (rule(fault={"kind": "error_before_first_token", "after": 1}), r"fault.after: not an integer between 0 and 0"),
    (rule(fault={"kind": "cut", "seconds": 1}), r"script.rules\[1\].fault.seconds: unknown"),
    ({"default": {"ids": [1], "times": 1}}, "script.default.times: unknown"),
    ({"default": {"ids": [1], "session": "s"}}, "script.default.session: unknown"),
    ({"tail_tokens": 0}, "script.tail_tokens: not an integer between 1 and 8192"),
    ({"tail_tokens": float("nan")}, "script.tail_tokens: not an integer"),
    ({"tail_tokens": float("inf")}, "script.tail_tokens: not an integer"),
    ({"timing": {"jitter": 2}}, "script.timing.jitter: not a number between 0 and 1"),
    ({"timing": {"slots": -1}}, "script.timing.slots: not an integer of at least 0"),
    ({"timing": {"tokens": 1}}, "script.timing.tokens: unknown"),
    ({"timing": {"prefill_tokens_per_s": float("inf")}}, "script.timing.prefill_tokens_per_s: not a number"),
]


@pytest.mark.parametrize(("document", "message"), MISTAKES)
def test_a_mistake_is_named(document: Any, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        parse(document)
