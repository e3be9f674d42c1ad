"""Calls rendered by a family's own chat template, tokenised and fed token by token, come back as the same calls.

Where no tokenizer of the family can be had, its markers are added to another vocabulary and the calls are written by the format's
documentation (``written``): what that shows is that text which spreads over real tokens is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from adapter.parsing import ParserChoice, Pipeline, PipelineOptions, choose_parsers, marked_text, markers_of
from adapter.parsing.reply import merged
from adapter.parsing.tools.registry import require_tool_family
from adapter.render.template import ChatTemplate
from adapter.types import Message, ParsedModelOutput, ToolUse
from engine.types import FinishReason
from tests.adapter.parsing.replies import assert_events_make
from tests.adapter.parsing.test_json_scanner import OBJECTS
from tests.adapter.parsing.written import FORM_NAMES, FORMS, TOOLS, Call, calls_with
from tests.support.assets import template_file, tokenizer_dir

EXAMPLES_EACH = 12
PROMPT_TAIL = 200
"""Characters of the prompt that are tokenised for its end."""


def load(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir(name) / "tokenizer.json"))


@pytest.fixture(scope="session")
def tokenizers() -> Callable[[str], Tokenizer]:
    loaded: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in loaded:
            loaded[name] = load(name)
        return loaded[name]

    return get


def chat_template(name: str) -> ChatTemplate:
    own = template_file(name)
    if own.is_file():
        return ChatTemplate(own.read_text())
    config = json.loads((tokenizer_dir(name) / "tokenizer_config.json").read_text())
    return ChatTemplate(config["chat_template"], {"bos_token": "<s>", "eos_token": config["eos_token"]})


def assistant(calls: Sequence[Call], content: str, reasoning: str) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    message["tool_calls"] = [
        {"type": "function", "id": "abcdefghi", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    return message


def read(
    tokenizer: Tokenizer, parsers: ParserChoice, prompt: str, reply: str, end_tokens: Sequence[str]
) -> ParsedModelOutput:
    """The reply's ids, one by one."""
    markers = markers_of(tokenizer, parsers)
    tail = marked_text(tokenizer, markers, tokenizer.encode(prompt, add_special_tokens=False).ids)
    end_ids = [tokenizer.token_to_id(token) for token in end_tokens]
    options = PipelineOptions.for_reply(parsers, markers, prompt_tail=tail, end_ids=end_ids, tools=TOOLS)
    pipeline = Pipeline(tokenizer, options)
    ids = tokenizer.encode(reply, add_special_tokens=False).ids
    batches = [pipeline.feed(np.array([token], dtype=np.int32)) for token in ids] + [pipeline.finish(FinishReason.STOP)]
    assert_events_make(merged([event for batch in batches for event in batch]), pipeline.output())
    return pipeline.output()


@dataclass(frozen=True)
class Model:
    """A template, and the vocabulary that its family has."""

    ends: tuple[str, ...]
    """Tokens that end a reply."""
    tokenizer: str = ""
    """By default the template's name."""
    most: int = 3
    """Calls that the template takes in one message."""
    has_text: bool = True
    """Whether it takes text beside calls."""
    has_reasoning: bool = False
    calls: st.SearchStrategy[list[Call]] = field(default_factory=lambda: calls_with(OBJECTS))


QWEN_ENDS = ("<|im_end|>",)
MODELS = {
    "gptoss": Model(("<|return|>", "<|call|>"), has_reasoning=True),
    "llama3_2": Model(("<|eot_id|>",), most=1, has_text=False),
    "mistral_nemo": Model(("</s>",), has_text=False),
    "qwen2_5": Model(QWEN_ENDS),
    "qwen3": Model(QWEN_ENDS, has_reasoning=True),
    "qwen3_coder": Model(QWEN_ENDS, tokenizer="qwen3", calls=FORMS["xml"].calls),
    "deepseek_v3_tools": Model(("<｜end▁of▁sentence｜>",), tokenizer="deepseek_v3"),
}


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=EXAMPLES_EACH)
@given(data=st.data())
def test_calls_come_back(model: str, data: st.DataObject, tokenizers: Callable[[str], Tokenizer]) -> None:
    about = MODELS[model]
    tokenizer = tokenizers(about.tokenizer or model)
    calls = [(name, as_encoded(tokenizer, value)) for name, value in data.draw(about.calls)[: about.most]]
    text = data.draw(st.sampled_from(["", "Look."])) if about.has_text else ""
    reasoning = data.draw(st.sampled_from(["", "Hm.\nSo."])) if about.has_reasoning else ""
    chat = chat_template(model)
    history: list[Message] = [{"role": "user", "content": "hi"}]
    prompt = chat.render(history, TOOLS, {})
    whole = chat.render([*history, assistant(calls, text, reasoning)], TOOLS, {}, add_generation_prompt=False)
    prompt = prompt if whole.startswith(prompt) else chat.render(history, TOOLS, {}, add_generation_prompt=False)
    assert whole.startswith(prompt)
    reply = whole.removeprefix(prompt).removesuffix("\n")
    output = read(tokenizer, choose_parsers(chat.source), prompt[-PROMPT_TAIL:], reply, about.ends)
    assert output == ParsedModelOutput(
        reasoning=reasoning, text=text, tool_uses=tuple(ToolUse(*call) for call in calls), ill_formed=False
    )


def as_encoded(tokenizer: Tokenizer, value: Any) -> Any:
    """``value`` as it is in this vocabulary: Qwen's changes text to its canonical composition."""
    normalizer = tokenizer.normalizer
    match value:
        case str():
            return normalizer.normalize_str(value) if normalizer is not None else value
        case dict():
            return {as_encoded(tokenizer, key): as_encoded(tokenizer, item) for key, item in value.items()}
        case list():
            return [as_encoded(tokenizer, item) for item in value]
        case _:
            return value


@pytest.fixture(scope="session")
def with_markers() -> Callable[[], Tokenizer]:
    """Llama's vocabulary, which changes no text, with the markers of every family as tokens."""
    tokenizer = load("llama3_1")
    texts = dict.fromkeys(text for form in FORMS.values() for text in require_tool_family(form.parser).markers)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts])
    return lambda: tokenizer  # hypothesis prints a tokenizer with its vocabulary


@pytest.mark.parametrize("form", FORM_NAMES)
@settings(max_examples=EXAMPLES_EACH)
@given(data=st.data())
def test_written_calls_come_back(form: str, data: st.DataObject, with_markers: Callable[[], Tokenizer]) -> None:
    calls = data.draw(FORMS[form].calls)
    parsers = ParserChoice(FORMS[form].parser, "none")
    output = read(with_markers(), parsers, "", FORMS[form].write(calls) + "<|eot_id|>", ["<|eot_id|>"])
    assert (output.text, output.ill_formed) == ("", False)
    assert output.tool_uses == tuple(ToolUse(*call) for call in calls)


@pytest.mark.parametrize("form", ["llama_json", "pythonic"])
@settings(max_examples=EXAMPLES_EACH)
@given(data=st.data())
def test_bare_calls_come_back_from_gemmas_vocabulary(
    form: str, data: st.DataObject, tokenizers: Callable[[str], Tokenizer]
) -> None:
    """One whose tokens are pieces of text, with byte tokens for the rest."""
    calls = data.draw(FORMS[form].calls.filter(lambda calls: "▁" not in json.dumps(calls, ensure_ascii=False)))
    written = FORMS[form].write(calls)
    output = read(
        tokenizers("gemma3"), ParserChoice("gemma3", "none"), "", written + "<end_of_turn>", ["<end_of_turn>"]
    )
    assert (output.text, output.ill_formed) == ("", False)
    assert output.tool_uses == tuple(ToolUse(*call) for call in calls)
