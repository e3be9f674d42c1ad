"""Tool calls of MiniMax M2."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.minimax import TAGS, minimax_calls
from adapter.types import ParsedModelOutput, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse
from tests.adapter.parsing.marked_replies import TOOLS, both_ways, by_text, by_tokens, markers_of

OPEN, CLOSE = TAGS.block
A = ToolUse("lookup", {"q": "x", "n": 3})
PARAMETERS = '<parameter name="q">x</parameter>\n<parameter name="n">3</parameter>\n'


def invoke(name: str = "lookup", parameters: str = PARAMETERS, end: str = "</invoke>\n") -> str:
    return f'<invoke name="{name}">\n{parameters}{end}'


def block(*calls: str) -> str:
    return f"{OPEN}\n{''.join(calls)}{CLOSE}"


def output(text: str, *uses: ToolUse, reasoning: str = "", ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(reasoning=reasoning, text=text, tool_uses=uses, ill_formed=ill_formed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (block(invoke()), output("", A)),
        ("I look.\n" + block(invoke(), invoke()), output("I look.", A, A)),
        ("I look.\n\n" + block(invoke()) + "\n \n", output("I look.\n", A)),
        (block(invoke()) + "\nDone.", output("\nDone.", A)),
        (block(invoke()) + "\n" + block(invoke()), output("", A, A)),
        (block(invoke(parameters="")), output("", ToolUse("lookup", {}))),
        (block(invoke(end=""), invoke(end="")), output("", A, A)),
        (OPEN + invoke(), output("", A)),
        (block(invoke("other", '<parameter name="z">7</parameter>')), output("", ToolUse("other", {"z": "7"}))),
        (
            block(invoke(parameters='<parameter name="q"> 7 \n<b></parameter><parameter name="n"> 7 </parameter>')),
            output("", ToolUse("lookup", {"q": " 7 \n<b>", "n": 7})),
        ),
        (
            block(invoke(parameters='<parameter name="n">many</parameter>')),
            output("", ToolUse("lookup", {"n": "many"})),
        ),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert both_ways(text, "minimax_m2") == expected


@pytest.mark.parametrize(
    "text",
    [
        OPEN,
        CLOSE,
        block(),
        f"the {OPEN} tag",
        f"a\n{OPEN} and {CLOSE} in prose",
        "<minimax:tool",
        invoke(),
        "a\n\n",
        "\n",
        " \n ",
    ],
)
def test_text_that_is_no_call_is_untouched(text: str) -> None:
    assert both_ways(text, "minimax_m2") == output(text)


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}\n<invoke name=",
        f'{OPEN}\n<invoke name="lookup',
        f'{OPEN}\n<invoke name="lookup">',
        f'{OPEN}\n<invoke name="lookup">\n<parameter name="q',
        f'{OPEN}\n<invoke name="look<up">',
        f'{OPEN}\n<invoke name="{"x" * 300}">',
        f'{OPEN}\n<invoke name="lookup">oops{CLOSE}',
    ],
)
def test_without_a_name_or_parameters_it_stays_text(text: str) -> None:
    result = both_ways("Hm.\n" + text, "minimax_m2")
    assert (result.text, result.tool_uses) == ("Hm.\n" + text, ())
    assert result.ill_formed or text.endswith("name=")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ('<parameter name="q">x</parameter>oops', {"q": None}),
        ('<parameter name="q">x</parameter><parameter nam="n">', {"q": None}),
        ('<parameter name="n">3</parameter><parameter name="q"oops', {"n": None}),
    ],
)
def test_markup_that_breaks_leaves_nothing_half(parameters: str, expected: dict[str, Any]) -> None:
    text = block(invoke(parameters=parameters), invoke()) + "\nDone."
    assert both_ways(text, "minimax_m2") == output("\nDone.", ToolUse("lookup", expected), A, ill_formed=True)


def test_a_call_that_was_none_does_not_hide_the_next() -> None:
    text = block('<invoke name="x">oops', invoke())
    assert both_ways(text, "minimax_m2") == output(f'{OPEN}\n<invoke name="x">oops', A, ill_formed=True)


def test_a_tag_in_a_value_is_text_only_where_it_is_no_token() -> None:
    text = block(invoke(parameters=f'<parameter name="q">{CLOSE}</parameter>'))
    assert by_text(text, "minimax_m2") == output("", ToolUse("lookup", {"q": CLOSE}))
    assert by_tokens(text, "minimax_m2").tool_uses == (ToolUse("lookup", {"q": None}),)


def test_reasoning_before_calls() -> None:
    text = "<think>\nI call.\n</think>\n\nNow.\n" + block(invoke())
    assert both_ways(text, "minimax_m2", reasoning_parser="think") == output("Now.", A, reasoning="I call.")


def test_each_piece_gives_what_it_settles() -> None:
    markers = markers_of("minimax_m2")
    parser = minimax_calls(ReplyContext(TOOLS, markers))
    pieces = [
        "A\n",
        markers.look(OPEN),
        '\n<invoke name="lookup">',
        '<parameter name="q">',
        "x <",
        "/b",
        "</parameter>",
    ]
    pieces += ['<parameter name="n">4', "2</parameter>", "</invoke>", markers.look(CLOSE)]
    assert [parser.feed(piece) for piece in pieces] == [
        [TextDelta("A")],
        [],
        [],
        [ToolCallStart("lookup"), ToolCallDelta('{"q":"')],
        [ToolCallDelta("x ")],
        [ToolCallDelta("</b")],
        [ToolCallDelta('"')],
        [ToolCallDelta(',"n":')],
        [ToolCallDelta("42")],
        [ToolCallDelta("}"), ToolCallEnd(ToolUse("lookup", {"q": "x </b", "n": 42}))],
        [],
    ]
    assert parser.finish() == []
