"""Which tokens are control tokens, and that marks keep strings from spelling them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from adapter.errors import BadRequest
from adapter.render.control import ControlTokens, escaped, is_control, longest_first, strings_of, with_strings

NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))
PRIVATE = "".join(map(chr, [*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]))


def control_tokens(*texts: str) -> ControlTokens:
    return ControlTokens({id_: AddedToken(text, special=True) for id_, text in enumerate(texts)}, "")


@pytest.mark.parametrize(
    ("token", "template", "expected"),
    [
        (AddedToken("<anything>", special=True), "", True),
        (AddedToken("<think>"), "", True),
        (AddedToken("[TOOL_CALLS]"), "", True),
        (AddedToken("<|fim_prefix|>"), "", True),
        (AddedToken("<｜fim▁hole｜>"), "", True),
        (AddedToken("<thing>"), "{{ '<thing>' }}", True),
        (AddedToken("<thing>"), "{{ '<things>' }}", False),
        (AddedToken("word"), "a word", False),
        (AddedToken("\n\n"), "a\n\nb", False),
        (AddedToken("  ", special=True), "", False),
        (AddedToken("<unused7>"), "", False),
    ],
)
def test_control_tokens_are_told_by_flag_form_name_and_template(
    token: AddedToken, template: str, expected: bool
) -> None:
    assert is_control(token, template) is expected


def test_gemmas_white_space_and_tags_are_vocabulary(renderers: Any) -> None:
    renderer = renderers("gemma3")
    assert set(renderer.encoder.control.ids) == {
        *("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    }


def test_the_longest_of_several_is_found() -> None:
    assert longest_first(["<a>", "<a>b", "<a"]).findall("<a>b<a><a") == ["<a>b", "<a>", "<a"]
    assert longest_first([]).search("anything") is None


@pytest.mark.parametrize(
    "value",
    ["<s>", ["x", "<s>"], {"<s>": 1}, {"x": {"y": [{"<s>": None}]}}, ("<s>",), [{"role": "user", "content": "a<s>b"}]],
)
def test_any_string_in_a_value_is_masked(value: Any) -> None:
    control = control_tokens("<s>")
    marks = control.marks(value)
    masked = control.masked(value, marks)
    assert "<s>" not in json.dumps(masked)
    assert marks.remove(json.dumps(masked, ensure_ascii=False)) == json.dumps(value, ensure_ascii=False)
    assert marks.remove(json.dumps(masked)) == json.dumps(value)


def test_a_value_that_spells_none_is_not_copied() -> None:
    control = control_tokens("<s>")
    value = {"a": ["<", "s", ">"], "n": 1}
    assert control.masked(value, control.marks(value)) is value


@given(st.lists(st.sampled_from(["<ab>", "b>c", ">c<", "<", ">", "a", "b", "c"])).map("".join))
def test_tokens_that_overlap_are_all_broken(text: str) -> None:
    control = control_tokens("<ab>", "b>c", ">c<")
    marks = control.marks(text)
    masked = control.masked(text, marks)
    assert not any(token in masked for token in control.ids)
    assert marks.remove(masked) == text


@pytest.mark.parametrize(
    ("text", "mask", "edge"),
    [
        ("", "\ufdd0", "\ufdd1"),
        ("\ufdd0", "\ufdd1", "\ufdd2"),
        ("a\\ufdd1b", "\ufdd0", "\ufdd2"),
        (NONCHARACTERS[:-1], "\U000f0000", "\U000f0001"),
        (NONCHARACTERS + "\U000f0000" + escaped("\U000f0001"), "\U000f0002", "\U000f0003"),
    ],
)
def test_marks_occur_in_no_string(text: str, mask: str, edge: str) -> None:
    marks = control_tokens().marks({text: "x"}, ["y"])
    assert (marks.mask, marks.edge) == (mask, edge)


def test_a_request_with_every_character_is_refused() -> None:
    control = control_tokens()
    with pytest.raises(BadRequest, match="every private-use character"):
        control.marks([NONCHARACTERS, PRIVATE])
    with pytest.raises(BadRequest, match="every private-use character"):
        control.marks([NONCHARACTERS, "".join(map(escaped, PRIVATE[:100]))])


def test_the_last_edge_counts_escaped_or_not() -> None:
    marks = control_tokens().marks()
    assert marks.after_edge("a\ufdd1b\ufdd1c") == 4
    assert marks.after_edge("a\ufdd1b\\ufdd1c") == 9
    assert marks.after_edge("abc") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(JSON)
def test_every_string_is_visited_and_changed(value: Any) -> None:
    marked = with_strings(value, lambda text: f"!{text}")
    assert sorted(strings_of(marked)) == sorted(f"!{text}" for text in strings_of(value))
    assert with_strings(marked, lambda text: text[1:]) == value
