"""What holds for every family whose format has markers or is bare, whatever the format."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.parsing.markers import Markers
from adapter.parsing.tools.registry import TOOL_FAMILIES, require_tool_family
from adapter.types import ToolCallDelta, ToolCallStart, ToolUse
from tests.adapter.parsing.marked_replies import by_text, by_tokens, marked, markers_of, run_marked
from tests.adapter.parsing.replies import assert_events_make
from tests.adapter.parsing.written import FORM_NAMES, FORMS, TOOLS, Call
from tests.support.feeding import assert_linear

PARSERS = sorted({form.parser for form in FORMS.values()})
EXAMPLES_EACH = 12
"""Of hypothesis, for each form or parser: each is fed in six ways, with tokens and without."""
BEFORE = {"gpt_oss": "<|channel|>commentary<|message|>Look.<|end|><|start|>assistant", "llama": ""}
"""Text before calls as each family writes it; "Look." where it is plain. Bare formats have none."""


def uses(calls: list[Call]) -> tuple[ToolUse, ...]:
    return tuple(ToolUse(name, arguments) for name, arguments in calls)


def test_every_family_is_among_them() -> None:
    assert set(map(id, TOOL_FAMILIES.values())) == {id(require_tool_family(parser)) for parser in PARSERS}


@pytest.mark.parametrize("form", FORM_NAMES)
@settings(max_examples=EXAMPLES_EACH)
@given(data=st.data(), seed=st.integers(0, 9))
def test_calls_arrive_as_they_are(form: str, data: st.DataObject, seed: int) -> None:
    calls = data.draw(FORMS[form].calls)
    before = BEFORE.get(FORMS[form].parser, "Look.")
    text = before + FORMS[form].write(calls)
    for read in (by_tokens, by_text):
        output = read(text, FORMS[form].parser, tools=TOOLS, seed=seed)
        assert (output.tool_uses, output.ill_formed) == (uses(calls), False)
        assert output.text == ("Look." if before else "")


EXAMPLES: list[Call] = [
    ("read_file", {"path": 'a "b" \\ é终 <x>'}),
    ("typed", {"text": "t", "count": 12, "items": [1, "x"]}),
]


@pytest.mark.parametrize("form", FORM_NAMES)
def test_cut_off_anywhere_no_half_call_can_run(form: str) -> None:
    parser = FORMS[form].parser
    written = FORMS[form].write(EXAMPLES)
    markers = markers_of(parser)
    for text, known in ((written, Markers()), (marked(written, markers, require_tool_family(parser).markers), markers)):
        for cut in range(len(text)):
            events, output = run_marked([text[:cut]], parser, known, tools=TOOLS)
            assert_events_make(events, output)
            for use, (name, arguments) in zip(output.tool_uses, EXAMPLES, strict=False):
                assert use.name == name
                assert use.input == arguments or (output.ill_formed and set(use.input.values()) <= {None})


@pytest.mark.parametrize("form", FORM_NAMES)
def test_arguments_are_passed_on_while_they_arrive(form: str) -> None:
    """Before the last character of a long string comes, most of it has been passed on, and its call is announced."""
    written = FORMS[form].write([("read_file", {"path": "x" * 1000})])
    markers = markers_of(FORMS[form].parser)
    text = marked(written, markers, require_tool_family(FORMS[form].parser).markers)
    at = text.index("x" * 1000) + 990
    events, _ = run_marked([text[:at]], FORMS[form].parser, markers)
    seen = [event for event in events if isinstance(event, ToolCallStart | ToolCallDelta)]
    assert seen[0] == ToolCallStart("read_file")
    assert len("".join(event.arguments for event in seen if isinstance(event, ToolCallDelta))) > 980


def scraps(parser: str) -> st.SearchStrategy[str]:
    """Pieces of markup in any order."""
    pieces = [*require_tool_family(parser).markers, *'{}[]():,="', "\n", " ", "a", "read_file", "lookup", "终", "\\"]
    pieces += [
        '{"name": "lookup", ',
        '"arguments": {',
        '"parameters": {}',
        '"q": 1',
        "call:lookup{",
        "lookup(q=",
        "'x'",
    ]
    pieces += ["<function=lookup>", "<parameter=q>", "</function>", "function", "lookup\n", "```json\n", "\n```"]
    pieces += [
        "<｜DSML｜function_calls>",
        '<｜DSML｜invoke name="lookup">',
        "</｜DSML｜invoke>",
        "</｜DSML｜function_calls>",
    ]
    pieces += ['<｜DSML｜parameter name="n" string="false">', "</｜DSML｜parameter>"]
    pieces += ['<invoke name="lookup">', '<parameter name="n">', "</parameter>", "</invoke>", "7", "```tool_code\n"]
    pieces += [
        "functions.lookup:0",
        " to=functions.lookup",
        "analysis",
        "final",
        "commentary",
        "assistant",
        "thought\n",
    ]
    return st.lists(st.sampled_from(pieces), max_size=16).map("".join)


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=EXAMPLES_EACH)
@given(data=st.data(), seed=st.integers(0, 9))
def test_scraps_of_markup_never_break_a_reply(parser: str, data: st.DataObject, seed: int) -> None:
    text = data.draw(scraps(parser))
    for read in (by_tokens, by_text):
        read(text, parser, tools=TOOLS, seed=seed)


@pytest.mark.parametrize("parser", [name for name in PARSERS if name != "gpt_oss"])
@settings(max_examples=EXAMPLES_EACH)
@given(text=st.text(max_size=30), seed=st.integers(0, 9))
def test_text_without_markup_is_untouched(parser: str, text: str, seed: int) -> None:
    assert by_tokens(text, parser, seed=seed).text == text


@pytest.mark.parametrize("parser", [name for name in PARSERS if require_tool_family(name).markers])
def test_text_that_spells_markers_is_text_where_they_are_tokens(parser: str) -> None:
    """As a model writes that explains the format: no token of it is a marker."""
    markers = markers_of(parser)
    text = "As in:" + FORMS[next(name for name in FORM_NAMES if FORMS[name].parser == parser)].write(EXAMPLES)
    _, output = run_marked(list(text), parser, markers, tools=TOOLS)
    assert (output.text, output.tool_uses, output.ill_formed) == (text, (), False)


def heads(form: str) -> dict[str, str]:
    """Beginnings of a reply behind which a unit repeats."""
    text = FORMS[form].write([("read_file", {"path": "xx"})])
    at = text.index("xx")
    return {"": "", "call": text, "string": text[:at], "begun": text[: at - 8]}


def assert_cost_is_linear(form: str, head: str, unit: str, whole: bool, size: int) -> None:
    parser = FORMS[form].parser
    marker = require_tool_family(parser).markers[0]
    unit = {"marker": marker, "call": FORMS[form].write([("lookup", {})])}.get(unit, unit)

    def feed(times: int) -> None:
        text = heads(form)[head] + unit * times
        run_marked([text] if whole else list(text), parser, Markers(), tools=TOOLS)

    assert_linear(feed, max(8, size // len(unit)))


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("head", ["call", "string", "begun"])
@pytest.mark.parametrize("unit", ["x", "\n", "call"])
def test_cost_is_linear(form: str, head: str, unit: str) -> None:
    assert_cost_is_linear(form, head, unit, whole=False, size=300)


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("head", ["", "string"])
@pytest.mark.parametrize("unit", ["x", "call"])
def test_cost_is_linear_at_once(form: str, head: str, unit: str) -> None:
    assert_cost_is_linear(form, head, unit, whole=True, size=4_200)
