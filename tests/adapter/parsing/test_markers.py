"""Structure tokens as stand-ins, and that nothing takes text which spells one for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from adapter.parsing import Markers, marked_text
from adapter.parsing.json_scanner import JsonScanner
from adapter.parsing.markers import MAX_STAND_INS
from adapter.parsing.stop_strings import StopStrings
from adapter.types import ParsedModelOutput, ToolUse
from tests.adapter.parsing.test_pipeline import JSON_CALL, fed, ids_of
from tests.adapter.parsing.test_stop_strings import by_definition
from tests.support.feeding import assert_linear, same_however_fed

MARKERS = Markers({"<a>": 1, "aa": 2, '"\\': 3})
A, AA, QUOTE = map(MARKERS.look, ("<a>", "aa", '"\\'))


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """``text``, each character by itself, so that no marker becomes a token."""
    return [token for char in text for token in ids_of(tokenizer, char)]


def test_only_tokens_have_stand_ins(qwen3: Tokenizer) -> None:
    markers = Markers.of(qwen3, ["<tool_call>", "<arg_key>", "</think>", "<tool_call>"])
    assert dict(markers.stand_ins) == {
        qwen3.token_to_id("<tool_call>"): markers.look("<tool_call>"),
        qwen3.token_to_id("</think>"): markers.look("</think>"),
    }
    assert markers.look("<arg_key>") == "<arg_key>"
    assert markers.spelled(f"x{markers.look('<tool_call>')}é") == "x<tool_call>é"
    assert Markers().look("<tool_call>") == "<tool_call>"


def test_there_are_only_so_many() -> None:
    with pytest.raises(ValueError, match="at most 2048 markers, not 2049"):
        Markers({str(n): n for n in range(MAX_STAND_INS + 1)})


def test_a_stand_in_takes_the_tokens_place(qwen3: Tokenizer) -> None:
    markers = Markers.of(qwen3, ["<tool_call>"])
    ids = [*ids_of(qwen3, "é <tool_call>好"), *letters(qwen3, "<tool_call>")]
    assert marked_text(qwen3, markers, ids) == f"é {markers.look('<tool_call>')}好<tool_call>"


def test_an_unfinished_character_ends_before_a_stand_in(qwen3: Tokenizer) -> None:
    markers = Markers.of(qwen3, ["<tool_call>"])
    half = ids_of(qwen3, "ok 😵")[:-1]
    text = marked_text(qwen3, markers, [*half, qwen3.token_to_id("<tool_call>"), *ids_of(qwen3, "x")])
    assert text == f"ok \ufffd{markers.look('<tool_call>')}x"


def pieced() -> Tokenizer:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁hello": 256, "▁world": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1, right=0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(["<call>", "<▁end>"])
    return tokenizer


@given(st.lists(st.one_of(st.sampled_from([256, 257, 258, 259]), st.sampled_from("é你😀").map(str.encode))))
def test_other_vocabularies_have_stand_ins_too(words: list[int | bytes]) -> None:
    tokenizer = pieced()
    markers = Markers.of(tokenizer, ["<call>", "<▁end>"])
    ids = [token for word in words for token in ([word] if isinstance(word, int) else word)]
    text = marked_text(tokenizer, markers, ids)
    assert [char for char in text if char in markers.stand_ins.values()] == [
        markers.stand_ins[token] for token in ids if token in markers.stand_ins
    ]
    assert markers.spelled(text).replace("▁", " ") == tokenizer.decode(ids, skip_special_tokens=False)


def test_text_that_spells_a_marker_is_no_call(qwen3: Tokenizer) -> None:
    spelled = fed(qwen3, letters(qwen3, JSON_CALL), tool_parser="hermes")[1]
    assert spelled == ParsedModelOutput(text=JSON_CALL)
    meant = fed(qwen3, ids_of(qwen3, JSON_CALL), tool_parser="hermes")[1]
    assert meant.tool_uses == (ToolUse("read_file", {"path": "读我.md"}),)


def test_text_that_spells_the_reasonings_tags_is_text(qwen3: Tokenizer) -> None:
    text = "<think>a</think>b"
    assert fed(qwen3, letters(qwen3, text), reasoning_parser="think")[1] == ParsedModelOutput(text=text)
    opened = fed(qwen3, letters(qwen3, "a</think>b"), reasoning_parser="think", reasoning_opened=True)[1]
    assert opened == ParsedModelOutput(reasoning="a</think>b")


def test_a_marker_that_means_nothing_is_its_text(qwen3: Tokenizer) -> None:
    text = "</tool_call> and </think> and <tool_call> in prose"
    assert fed(qwen3, ids_of(qwen3, text), tool_parser="hermes", reasoning_parser="think")[1] == ParsedModelOutput(
        text=text
    )


def test_a_marker_inside_a_value_is_its_text(qwen3: Tokenizer) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"<think>": "</tool_call>"}}</tool_call>'
    parsed = fed(qwen3, ids_of(qwen3, text), tool_parser="hermes", reasoning_parser="think")[1]
    assert parsed == ParsedModelOutput(tool_uses=(ToolUse("f", {"<think>": "</tool_call>"}),))


@pytest.mark.parametrize("stop", ["</tool_call>", "tool_call>", "}\n</tool", "}}\n</tool_call>", "<|im_end|>"])
def test_a_stop_string_matches_a_markers_text(qwen3: Tokenizer, stop: str) -> None:
    ids = ids_of(qwen3, JSON_CALL + "<|im_end|> more")
    _, parsed, stopped, _ = fed(qwen3, ids, tool_parser="hermes", stop=(stop,))
    assert stopped is not None
    assert stop in qwen3.decode(ids[: stopped.tokens], skip_special_tokens=False)
    assert stop not in qwen3.decode(ids[: stopped.tokens - 1], skip_special_tokens=False)
    assert parsed.stop_sequence == stop


UNITS = st.lists(st.sampled_from(["a", "<", ">", "b", A, AA])).map("".join)


@given(st.lists(st.text("a<>b", max_size=5), max_size=4), UNITS, st.integers(0, 9))
def test_stop_strings_see_the_text_of_stand_ins(stops: list[str], units: str, seed: int) -> None:
    def through(pieces: list[str]) -> tuple[str, str | None]:
        machine = StopStrings(stops, MARKERS)
        return "".join(map(machine.feed, pieces)) + machine.finish(), machine.hit

    passed, hit = same_however_fed(through, units, seed)
    assert (MARKERS.spelled(passed), hit) == by_definition(stops, MARKERS.spelled(units))
    if hit is None:
        assert passed == units


@given(st.lists(st.text("a<>b", min_size=1, max_size=5), min_size=1, max_size=3), UNITS)
def test_only_units_in_which_a_stop_string_may_begin_are_held(stops: list[str], units: str) -> None:
    machine = StopStrings(stops, MARKERS)
    passed = "".join(map(machine.feed, units))
    if machine.hit is None:
        text = MARKERS.spelled(units)
        begun = max(n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops))
        held = units.removeprefix(passed)
        assert len(MARKERS.spelled(held)) >= begun
        assert len(MARKERS.spelled(held[1:])) < max(begun, 1)


def test_stop_strings_of_many_markers_cost_what_the_text_costs() -> None:
    def feed(size: int) -> None:
        machine = StopStrings(["a" * 18 + "b"], MARKERS)
        for _ in range(size):
            machine.feed(AA)

    assert_linear(feed, 300)


def test_json_holds_a_stand_in_as_its_text_escaped() -> None:
    scanner = JsonScanner(MARKERS)
    assert scanner.feed(f'{{"k{A}": "v{QUOTE}", "w": "x') == ('{"k<a>": "v\\"\\\\", "w": "x', "")
    assert scanner.completion() == '","k<a>":null,"w":null}'


@pytest.mark.parametrize("text", [f"{{{A}", f'{{"k": 1{A}', f"{A}"])
def test_json_has_no_stand_ins_outside_strings(text: str) -> None:
    scanner = JsonScanner(MARKERS)
    committed, rest = scanner.feed(text + " ")
    assert (scanner.failed, rest) == (True, text[text.index(A) :] + " ")
    assert A not in committed
