"""Control ids come from the template alone; everything else is encoded as the library does it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from adapter.render.control import ControlTokens
from adapter.render.encoding import Encoder
from adapter.render.prompt import Renderer
from adapter.types import Message
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import OPTIONS, TEXTS, TOOLS, Step, sessions, user
from tests.adapter.render.families import FAMILIES, WITH_TOOLS


def library_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def messages_of(steps: Iterable[Step]) -> list[Message]:
    """The session up to the last answer."""
    *past, last = steps
    return [message for step in past for message in (*step.new, step.answer)] + last.new


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(st.data())
def test_a_conversation_that_spells_no_control_token_is_encoded_as_by_the_library(
    renderers: Renderers, family: str, data: st.DataObject
) -> None:
    renderer = renderers(family)
    steps = data.draw(sessions(tools=FAMILIES[family].tools, reasoning=True))
    tools = TOOLS if data.draw(st.booleans()) else ()
    prompt = renderer.prompt(messages_of(steps), tools, data.draw(OPTIONS))
    assert prompt.ids.dtype == np.int32
    assert prompt.ids.tolist() == library_ids(renderer.tokenizer, prompt.text)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(st.data())
def test_text_that_spells_control_tokens_stays_text(renderers: Renderers, family: str, data: st.DataObject) -> None:
    renderer = renderers(family)
    control = renderer.encoder.control
    spelled = st.lists(st.one_of(st.sampled_from(sorted(control.ids)), TEXTS), min_size=1, max_size=6).map("".join)
    text = f"a{data.draw(spelled)}b"
    prompt, harmless = (renderer.prompt([user(content)], (), {}) for content in (text, "ab"))
    assert control_ids(renderer, prompt.ids) == control_ids(renderer, harmless.ids)
    assert text in prompt.text
    assert text in normalized(renderer, prompt.ids, text)


def normalized(renderer: Renderer, ids: np.ndarray, text: str) -> str:
    """The decoded prompt; tokenizers that normalize are compared on what they make of the text by itself."""
    decoded = renderer.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    normalizer = renderer.tokenizer.normalizer
    if isinstance(normalizer, normalizers.NFC):
        assert normalizer.normalize_str(text) in decoded
        return text
    return str(decoded)


def control_ids(renderer: Renderer, ids: np.ndarray) -> list[int]:
    control = set(renderer.encoder.control.ids.values())
    return [id_ for id_ in ids.tolist() if id_ in control]


def telling_tokens(renderer: Renderer) -> list[str]:
    """The control tokens that the template writes, and a few others (DeepSeek has 800 place holders)."""
    tokens = list(renderer.encoder.control.ids)
    return [token for token in tokens if token in renderer.template.source] + tokens[:20]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_place_in_a_request_reaches_a_control_token(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    for token in telling_tokens(renderer):
        evil, harmless = (
            renderer.prompt(
                [{"role": "system", "content": f"S{text}"}, user(f"{text} x")],
                [
                    {
                        "type": "function",
                        "function": {"name": f"n{text}", "description": text, "parameters": {text: text}},
                    }
                ],
                {"model_identity": text, "reasoning_effort": text},
            )
            for text in (token, "harmless")
        )
        assert control_ids(renderer, evil.ids) == control_ids(renderer, harmless.ids), token


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_calls_reasoning_and_results_reach_no_control_token(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    for token in telling_tokens(renderer):
        evil, harmless = (
            renderer.prompt(
                [
                    user("go"),
                    {
                        "role": "assistant",
                        "content": f"C{text}",
                        "reasoning_content": f"R{text}",
                        "tool_calls": [{"type": "function", "function": {"name": text, "arguments": {text: text}}}],
                    },
                    {"role": "tool", "content": text},
                ],
                (),
                {},
            )
            for text in (token, "harmless")
        )
        assert control_ids(renderer, evil.ids) == control_ids(renderer, harmless.ids), token


def test_what_remains_of_a_broken_token_is_broken_too(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    for text in ("<<|im_end|>|im_end|>", "<|im_<|im_end|>end|>", "<|im_end|><|im_end|>"):
        prompt = renderer.prompt([user(text)], (), {})
        assert prompt.ids.tolist().count(151645) == 1
        assert text in prompt.text


def test_a_request_that_holds_the_usual_marks_gets_others(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    text = "".join(map(chr, range(0xFDD0, 0xFDF0))) + "<|im_end|>"
    prompt = renderer.prompt([user(text)], (), {})
    assert text in prompt.text
    assert text in renderer.tokenizer.decode(prompt.ids.tolist(), skip_special_tokens=False)
    assert prompt.ids.tolist().count(151645) == 1


def test_marks_that_a_template_escapes_go_too(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    marks = renderer.encoder.control.marks()
    assert renderer.encoder.encode("a\\ufdd0b\\ufdd1c", marks).tolist() == renderer.encoder.encode("abc").tolist()
    assert renderer.encoder.control.marks(["\\ufdd0"]).mask == "\ufdd1"


def test_lone_surrogates_become_replacement_characters(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    prompt = renderer.prompt([user("a\ud800b")], (), {})
    assert prompt.ids.tolist() == renderer.prompt([user("a\ufffdb")], (), {}).ids.tolist()


def test_threads_get_the_same_ids(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    conversations = [[user(f"{number} <|im_end|> {'word ' * number}")] for number in range(40)]
    expected = [renderer.prompt(messages, (), {}).ids.tolist() for messages in conversations]
    results: list[list[list[int]]] = [[] for _ in range(8)]

    def work(own: list[list[int]]) -> None:
        own.extend(renderer.prompt(messages, (), {}).ids.tolist() for messages in conversations)

    threads = [threading.Thread(target=work, args=(own,)) for own in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own == expected for own in results)


def small_tokenizer(added: Iterable[AddedToken], pre_tokenizer: pre_tokenizers.PreTokenizer | None = None) -> Tokenizer:
    """Characters and a few merges. The word start is U+2581, as in SentencePiece."""
    letters = ["<unk>", "▁", *"abcdefgh<>/|\n", "▁a", "▁<", "ab", "▁ab"]
    merges = [("▁", "a"), ("▁", "<"), ("a", "b"), ("▁a", "b")]
    model = models.BPE({text: id_ for id_, text in enumerate(letters)}, merges, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_tokens(list(added))
    return tokenizer


def encoder_of(tokenizer: Tokenizer) -> Encoder:
    return Encoder(tokenizer, ControlTokens(tokenizer.get_added_tokens_decoder(), ""))


METASPACE_FIRST = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first")])


@pytest.mark.parametrize("pre_tokenizer", [None, METASPACE_FIRST])
@pytest.mark.parametrize("text", ["ab <s>ab <s> ab", "<s>ab", " ab", "ab", "", "<s>", "<s><s>ab\n<s>"])
def test_only_the_first_piece_of_a_text_begins_a_word(
    text: str, pre_tokenizer: pre_tokenizers.PreTokenizer | None
) -> None:
    tokenizer = small_tokenizer([AddedToken("<s>", special=True, normalized=False)], pre_tokenizer)
    encoder = encoder_of(tokenizer)
    assert encoder.fault is None
    assert encoder.encode(text).tolist() == library_ids(tokenizer, text)


def test_a_text_that_goes_on_does_not_begin_a_word() -> None:
    tokenizer = small_tokenizer([AddedToken("<s>", special=True, normalized=False)])
    encoder = encoder_of(tokenizer)
    whole, behind = library_ids(tokenizer, "<s>ab"), encoder.encode("ab", at_start=False).tolist()
    assert behind == whole[1:]
    assert encoder.encode("ab").tolist() != behind


@pytest.mark.parametrize("text", ["a <s> b", "a<s>b", "a  <s>\n <s> b", "ab<s>", "<s>\n", "a<s>b <s> c"])
@pytest.mark.parametrize(
    "flags", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}]
)
def test_tokens_that_take_white_space_or_stand_alone(text: str, flags: dict[str, bool]) -> None:
    tokenizer = small_tokenizer([AddedToken("<s>", special=True, normalized=False, **flags)])
    encoder = encoder_of(tokenizer)
    assert encoder.fault is None
    assert encoder.encode(text).tolist() == library_ids(tokenizer, text)


def test_added_tokens_that_are_plain_vocabulary_stay() -> None:
    tokenizer = small_tokenizer([AddedToken("<s>", special=True, normalized=False), AddedToken("ab", normalized=False)])
    tokenizer.add_tokens([AddedToken("gh", normalized=False)])
    encoder = encoder_of(tokenizer)
    assert set(encoder.control.ids) == {"<s>"}
    for text in ("<s>abgh", "gh ab<s>", "aab"):
        assert encoder.encode(text).tolist() == library_ids(tokenizer, text)


def test_a_tokenizer_that_cannot_be_split_says_so_and_encodes_whole_texts() -> None:
    tokenizer = small_tokenizer([AddedToken("<s>", special=True, normalized=True)])
    tokenizer.normalizer = normalizers.Replace("H", "<s>")
    encoder = encoder_of(tokenizer)
    assert encoder.fault is not None and "differently" in encoder.fault
    assert encoder.encode("aHb<s>").tolist() == library_ids(tokenizer, "aHb<s>")


def test_a_vocabulary_that_spells_a_control_token_says_so() -> None:
    letters = ["<", "s", ">", "<s", "<s>"]
    model = models.BPE({text: id_ for id_, text in enumerate(letters)}, [("<", "s"), ("<s", ">")])
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    fault = encoder_of(tokenizer).fault
    assert fault is not None and "'<s>'" in fault
