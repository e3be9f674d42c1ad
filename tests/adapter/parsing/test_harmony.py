"""Replies of gpt-oss, and the openai-harmony package as the judge of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import HarmonyEncoding, HarmonyError, Message, Role, StreamableParser, load_harmony_encoding
from tokenizers import Tokenizer

from adapter.parsing import ParserChoice, Pipeline, PipelineOptions
from adapter.parsing.markers import Markers
from adapter.parsing.tools.harmony import MARKERS, MAX_HEADER
from adapter.types import ParsedModelOutput, ToolUse
from engine.types import FinishReason
from tests.adapter.parsing.marked_replies import both_ways, by_tokens, markers_of, run_marked
from tests.adapter.parsing.test_family_round_trip import load, read
from tests.adapter.parsing.test_json_scanner import OBJECTS
from tests.adapter.parsing.written import MARKUP
from tests.support.assets import tokenizer_dir

FAMILY = ParserChoice("gpt_oss", "none")
ENDS = ("<|return|>", "<|call|>")
THINK = "<|channel|>analysis<|message|>Hm.<|end|>"
CALL = '<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{"q": "x"}<|call|>'
USE = ToolUse("lookup", {"q": "x"})
NEXT = "<|start|>assistant"


def output(text: str = "", *uses: ToolUse, reasoning: str = "", ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(reasoning=reasoning, text=text, tool_uses=uses, ill_formed=ill_formed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", output()),
        ("<|channel|>final<|message|>Hello<|return|>", output("Hello")),
        ("<|channel|>final<|message|>Hello", output("Hello")),
        ("<|channel|>final<|message|><|return|>", output()),
        (f"{THINK}{NEXT}<|channel|>final<|message|>Hello<|return|>", output("Hello", reasoning="Hm.")),
        (f"{THINK}{NEXT}{CALL}", output("", USE, reasoning="Hm.")),
        (f"<|channel|>commentary<|message|>Plan.<|end|>{NEXT}{CALL}", output("Plan.", USE)),
        (f"{THINK}{NEXT}{THINK}{NEXT}{CALL}", output("", USE, reasoning="Hm.\nHm.")),
        (f"<|channel|>commentary<|message|>A<|end|>{NEXT}<|channel|>final<|message|>B<|return|>", output("A\nB")),
        (f"{CALL}{NEXT}{CALL}", output("", USE, USE)),
        (CALL.replace("<|call|>", "<|end|>") + NEXT + CALL, output("", USE, USE)),
        (CALL.replace("commentary", "analysis"), output("", USE)),
        (CALL.replace(" <|constrain|>", "<|constrain|>"), output("", USE)),
        (CALL.replace("<|constrain|>json", "code"), output("", USE)),
        (CALL.replace("<|constrain|>json", ""), output("", USE)),
        (' to=functions.lookup<|channel|>commentary json<|message|>{"q": "x"}<|call|>', output("", USE)),
        (
            f'{THINK}<|start|>assistant to=functions.lookup<|channel|>commentary<|message|>{{"q": "x"}}',
            output("", USE, reasoning="Hm."),
        ),
        (CALL.replace("functions.lookup", "browser.search"), output("", ToolUse("browser.search", {"q": "x"}))),
        (CALL.replace('{"q": "x"}', ""), output("", ToolUse("lookup", {}))),
        (CALL.replace("to=functions.lookup", "to=assistant"), output('{"q": "x"}')),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert both_ways(text, "gpt_oss") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, no header", output("Hello, no header")),
        ("to", output("to")),
        ("towards it", output("towards it")),
        ("<|message|>Hello", output("Hello")),
        ("<|channel|>other<|message|>Hello<|end|>", output("Hello")),
        ("<|channel|>final Hello<|end|>", output("Hello")),
        (
            "<|channel|>analysis Hm.<|end|>" + NEXT + "<|channel|>final<|message|>Hello",
            output("Hello", reasoning="Hm."),
        ),
        ("<|channel|>fin", output()),
        ("<|channel|>", output()),
        ("<|channel|>commentary to=functions.lookup", output(ill_formed=True)),
        ("<|channel|>commentary to=functions.lookup<|message|>", output(ill_formed=True)),
        ("<|channel|>commentary to=functions.lookup<|message|>{", output(ill_formed=True)),
        ("<|channel|>commentary to=functions.lookup<|end|>", output(ill_formed=True)),
        ("<|channel|>final<|message|>A<|end|>B", output("A\nB")),
        ("<|channel|>final<|message|>A<|end|> \n", output("A")),
        ("<|channel|>final<|message|>A<|end|> \n B ", output("A\nB ")),
        ("<|channel|>final<|message|>A<|end|><|channel|>final<|message|>B", output("A\nB")),
        ("<|channel|>final<|message|>A" + NEXT + "<|channel|>final<|message|>B", output("A\nB")),
        ("<|channel|>final<|message|>A<|end|><|end|><|return|>", output("A")),
        ("<|channel|>final<|message|>A<|end|><|start|>user<|message|>B<|end|>", output("A\nB")),
        (CALL.replace('"x"}', '"x'), output("", ToolUse("lookup", {"q": None}), ill_formed=True)),
        (CALL.replace('{"q": "x"}', "print(1)"), output("", ToolUse("lookup", {}), ill_formed=True)),
        (CALL.replace("<|call|>", " and more<|call|>"), output("", USE, ill_formed=True)),
    ],
)
def test_what_models_should_not_write(text: str, expected: ParsedModelOutput) -> None:
    assert by_tokens(text, "gpt_oss") == expected


def test_a_header_without_end_is_text() -> None:
    text = "<|channel|>" + "final " * MAX_HEADER
    assert both_ways(text, "gpt_oss").text == text.removeprefix("<|channel|>")


def test_a_marker_in_a_string_ends_the_call_only_if_it_is_a_token() -> None:
    text = CALL.replace('"x"', '"a<|end|>b"')
    assert by_tokens(text, "gpt_oss").tool_uses == (ToolUse("lookup", {"q": None}),)
    _, by_text = run_marked([text], "gpt_oss", Markers())
    assert by_text.tool_uses == (ToolUse("lookup", {"q": "a<|end|>b"}),)


@pytest.mark.parametrize(
    ("prompt", "reply", "expected"),
    [
        (NEXT, THINK, output(reasoning="Hm.")),
        ("<|start|>user<|message|>x<|end|>" + NEXT, "<|channel|>final<|message|>Hi", output("Hi")),
        (NEXT + "<|channel|>analysis<|message|>", "Hm.<|end|>", output(reasoning="Hm.")),
        (NEXT + "<|channel|>analysis<|message|>First", " Hm.<|end|>", output(reasoning=" Hm.")),
        (NEXT + "<|channel|>final<|message|>He", "llo", output("llo")),
        ("<|start|>user<|message|>x", "llo", output("llo")),
    ],
)
def test_the_prompt_may_have_begun_the_message(prompt: str, reply: str, expected: ParsedModelOutput) -> None:
    markers = markers_of("gpt_oss")

    def look(text: str) -> str:
        for marker in MARKERS:
            text = text.replace(marker, markers.look(marker))
        return text

    _, result = run_marked(list(look(reply)), "gpt_oss", markers, prompt_tail=look(prompt))
    assert result == expected


@pytest.fixture(scope="session")
def gptoss() -> Callable[[], Tokenizer]:
    tokenizer = load("gptoss")
    return lambda: tokenizer  # hypothesis prints a tokenizer with its vocabulary


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> HarmonyEncoding:
    """The package's encoding, over a vocabulary file made from the tokenizer: it cannot download one here."""
    vocabulary = json.loads((tokenizer_dir("gptoss") / "tokenizer.json").read_text())["model"]["vocab"]
    bytes_of = {character: byte for byte, character in enumerate(byte_characters())}
    lines = [
        base64.b64encode(bytes(bytes_of[character] for character in token)) + b" %d\n" % rank
        for token, rank in sorted(vocabulary.items(), key=lambda item: item[1])
    ]
    folder = tmp_path_factory.mktemp("encodings")
    Path(folder / "o200k_base.tiktoken").write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        return load_harmony_encoding("HarmonyGptOss")


def byte_characters() -> list[str]:
    """GPT-2's character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def judged(judge: HarmonyEncoding, ids: Sequence[int]) -> list[Message]:
    parser = StreamableParser(judge, role=Role.ASSISTANT)
    for token in ids:
        parser.process(token)
    parser.process_eos()
    return parser.messages


def expected_of(messages: Sequence[Message]) -> ParsedModelOutput:
    """What the judge's messages amount to for a client."""
    texts = [(message, "".join(part.text for part in message.content)) for message in messages]
    calls = [(message.recipient, text) for message, text in texts if message.recipient]
    thoughts = [text for message, text in texts if not message.recipient and message.channel == "analysis" and text]
    visible = [text for message, text in texts if not message.recipient and message.channel != "analysis" and text]
    return ParsedModelOutput(
        reasoning="\n".join(thoughts),
        text="\n".join(visible),
        tool_uses=tuple(
            ToolUse(name.removeprefix("functions."), json.loads(text)) for name, text in calls if name is not None
        ),
    )


WORDS = st.text(max_size=12).filter(lambda text: not MARKUP.search(text))
PLAIN = st.tuples(st.sampled_from(["analysis", "commentary", "final"]), WORDS).map(
    lambda pair: f"<|channel|>{pair[0]}<|message|>{pair[1]}"
)
CALLS = st.tuples(
    st.sampled_from(
        [
            "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
            "<|channel|>commentary to=functions.{}<|constrain|>json<|message|>",
            "<|channel|>analysis to=functions.{} code<|message|>",
            " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>",
            "<|channel|>commentary to=functions.{}<|message|>",
        ]
    ),
    st.sampled_from(["lookup", "read_file"]),
    OBJECTS.filter(lambda value: not MARKUP.search(json.dumps(value, ensure_ascii=False))),
).map(lambda call: call[0].format(call[1]) + json.dumps(call[2]))
REPLIES = st.lists(PLAIN | CALLS, min_size=1, max_size=4).map(f"<|end|>{NEXT}".join)


@settings(max_examples=60)
@given(reply=REPLIES, end=st.sampled_from([*ENDS, "<|end|>", ""]))
def test_the_judge_reads_the_same(
    reply: str, end: str, gptoss: Callable[[], Tokenizer], judge: HarmonyEncoding
) -> None:
    ids = gptoss().encode(reply + end, add_special_tokens=False).ids
    assert judge.encode(reply + end, allowed_special="all") == ids
    assert read(gptoss(), FAMILY, NEXT, reply + end, ENDS) == expected_of(judged(judge, ids))


PARTS = [*MARKERS, "assistant", "analysis", "final", "commentary", " to=functions.lookup", '{"q": ', '"x"}', " ", "a"]


@settings(max_examples=60)
@given(reply=st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_where_the_judge_gives_up_something_is_read(
    reply: str, gptoss: Callable[[], Tokenizer], judge: HarmonyEncoding
) -> None:
    """No sequence of tokens is an error here. Each call that the judge can read whole is one here too."""
    result = read(gptoss(), FAMILY, NEXT, reply, ENDS)
    try:
        messages = judged(judge, gptoss().encode(reply, add_special_tokens=False).ids)
    except HarmonyError:
        return
    whole = [message for message in messages if message.recipient == "functions.lookup"]
    assert len(result.tool_uses) >= sum(message.content[0].text == '{"q": "x"}' for message in whole)


def test_reasoning_tokens_are_those_of_analysis_messages(gptoss: Callable[[], Tokenizer]) -> None:
    """From the ``<|message|>`` that opens one to the ``<|end|>`` that closes it."""
    tokenizer = gptoss()
    pipeline = Pipeline(tokenizer, PipelineOptions("gpt_oss", end_ids=[tokenizer.token_to_id(token) for token in ENDS]))
    ids = tokenizer.encode(f"{THINK}{NEXT}<|channel|>final<|message|>Hi.<|return|>", add_special_tokens=False).ids
    pipeline.feed(np.array(ids, dtype=np.int32))
    pipeline.finish(FinishReason.STOP)
    thought = tokenizer.encode("<|message|>Hm.<|end|>", add_special_tokens=False).ids
    assert pipeline.reasoning_tokens == len(thought)
    assert pipeline.output() == output("Hi.", reasoning="Hm.")


def test_stop_strings_apply_inside_messages(gptoss: Callable[[], Tokenizer]) -> None:
    tokenizer = gptoss()
    pipeline = Pipeline(tokenizer, PipelineOptions("gpt_oss", stop=["STOP"]))
    ids = tokenizer.encode(f"{THINK}{NEXT}<|channel|>final<|message|>A STOP B", add_special_tokens=False).ids
    for token in ids:
        pipeline.feed(np.array([token], dtype=np.int32))
    pipeline.finish(FinishReason.STOP)
    assert (pipeline.output().text, pipeline.output().stop_sequence) == ("A ", "STOP")
