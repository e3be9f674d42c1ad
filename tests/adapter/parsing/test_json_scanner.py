"""The incremental scanner takes exactly what orjson takes, says where it ends, and can end it early."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.parsing.json_scanner import MAX_DEPTH, MAX_SCALAR, JsonScanner, parse_json
from tests.support.feeding import assert_linear, same_however_fed

KEYS = st.text(max_size=4)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
STYLES = st.sampled_from(
    [{}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}, {"separators": (" ,\t", " :\r\n")}]
)


def scanned(pieces: list[str]) -> tuple[str, str, str]:
    """(outcome, committed, rest)"""
    scanner = JsonScanner()
    committed, rest = "", ""
    for piece in pieces:
        if scanner.done or scanner.failed:
            rest += piece
        else:
            more, rest = scanner.feed(piece)
            committed += more
    return "done" if scanner.done else "failed" if scanner.failed else "running", committed, rest


@given(OBJECTS, STYLES, st.text(max_size=5), st.integers(0, 9))
def test_an_object_is_taken_up_to_its_end(value: dict[str, Any], style: dict[str, Any], after: str, seed: int) -> None:
    text = json.dumps(value, **style)
    assert same_however_fed(scanned, text + after, seed) == ("done", text, after)


def loads(text: str) -> Any:
    try:
        return ("value", orjson.loads(text))
    except orjson.JSONDecodeError:
        return "refused"


def parsed(text: str) -> Any:
    try:
        return ("value", parse_json(text))
    except ValueError:
        return "refused"


FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    '"a"',
    "1",
    "-",
    "0",
    ".5",
    "e9",
    "true",
    "null",
    "tru",
    " ",
    "\n",
    "\\",
    "\\n",
]
FRAGMENTS += ["\\u12", "\\ud83d", "\\ude00", "\x00", "\x7f", "é", "'", "+", "NaN", "/", "1e999", "\u2028", "A"]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_it_takes_what_orjson_takes(text: str) -> None:
    assert parsed(text) == loads(text)


@given(OBJECTS, STYLES, st.data())
def test_it_takes_what_orjson_takes_of_almost_json(
    value: dict[str, Any], style: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value, **style)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(FRAGMENTS)) + text[at + data.draw(st.integers(0, 2)) :]
    assert parsed(text) == loads(text)


BAD = [
    "",
    " ",
    "01",
    "1.",
    "-",
    "+1",
    ".5",
    "1e",
    "1e999",
    "9" * 400,
    "NaN",
    "Infinity",
    "nul",
    "True",
    "1 2",
    "\ufeff1",
]
BAD += ["'a'", '"', '"\t"', '"\\x"', '"\\ud800"', '"\\ude00"', '"\\ud800\\u0041"', '"\ud800"', "//c\n1"]
BAD += ["[1,]", "[1 2]", "[,]", "]", "[}", '{"a":1,}', '{"a" 1}', '{"a":}', "{a:1}", "{1:2}", "{,}"]


@pytest.mark.parametrize("text", BAD)
def test_refused(text: str) -> None:
    assert parsed(text) == "refused"


def test_a_number_beyond_a_double_is_null() -> None:
    text = '{"a": 1e400, "b": [-9e999, 2], "c": 1e308} '
    committed = same_however_fed(lambda pieces: scanned(pieces)[1], text)
    assert committed == '{"a": null, "b": [null, 2], "c": 1e308}'


def test_limits() -> None:
    assert parsed("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0] == "value"
    assert parsed("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) == "refused"
    digits = "0." + "1" * (MAX_SCALAR - 2)
    assert parsed(digits) == ("value", float(digits))
    assert same_however_fed(scanned, f"[{digits}1]") == ("failed", "[", f"{digits}1]")


@given(OBJECTS, STYLES, st.data())
def test_completed_anywhere_it_is_an_object_with_nulls(
    value: dict[str, Any], style: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value, **style)
    scanner = JsonScanner()
    committed, _ = scanner.feed(text[: data.draw(st.integers(1, len(text) - 1))])
    completed = orjson.loads(committed + scanner.completion())
    assert set(completed.values()) <= {None}
    assert list(completed)[:-1] == list(value)[: max(0, len(completed) - 1)]  # the last key may be cut short


@given(OBJECTS, STYLES, st.data(), st.integers(0, 9))
def test_completed_after_it_broke(value: dict[str, Any], style: dict[str, Any], data: st.DataObject, seed: int) -> None:
    text = json.dumps(value, **style)
    at = data.draw(st.integers(1, len(text) - 1))
    broken = text[:at] + data.draw(st.sampled_from(["\x00", "<", "</tool_call>", "@", "tru3 "])) + text[at:]

    def run(pieces: list[str]) -> str:
        scanner = JsonScanner()
        committed = ""
        for piece in pieces:
            if not (scanner.failed or scanner.done):
                committed += scanner.feed(piece)[0]
        return committed if scanner.done else committed + scanner.completion()

    assert isinstance(orjson.loads(same_however_fed(run, broken, seed)), dict)


@pytest.mark.parametrize(
    ("begun", "completed"),
    [
        ("{", "{}"),
        ("{ ", "{ }"),
        ('{"pa', '{"pa":null}'),
        ('{"a"', '{"a":null,"a":null}'),
        ('{"a":', '{"a":null,"a":null}'),
        ('{"a": tr', '{"a": null,"a":null}'),
        ('{"a": 12', '{"a": null,"a":null}'),
        ('{"a": "half', '{"a": "half","a":null}'),
        ('{"a": "\\u12', '{"a": "","a":null}'),
        ('{"a": 1', '{"a": null,"a":null}'),
        ('{"a": 1,', '{"a": 1,"a":null}'),
        ('{"a": [1, {"b": 2, ', '{"a": [1, {"b": 2, "":null}],"a":null}'),
        ('{"a": [1, ', '{"a": [1, null],"a":null}'),
        ('{"a": 1, "b', '{"a": 1, "b":null,"a":null}'),
    ],
)
def test_completions(begun: str, completed: str) -> None:
    scanner = JsonScanner()
    committed, _ = scanner.feed(begun)
    assert committed + scanner.completion() == completed


def test_strings_stream_while_they_are_written() -> None:
    scanner = JsonScanner()
    assert [scanner.feed(piece)[0] for piece in ('{"a', '": "x', "y\\", "n", "z\\ud83d", "\\ude00", '"}')] == [
        '{"a',
        '": "x',
        "y",
        "\\n",
        "z",
        "\\ud83d\\ude00",
        '"}',
    ]


@pytest.mark.parametrize("unit", ["a", "\\n", "\\ud83d\\ude00", '","', '", 12.5e3, "'])
def test_cost_is_linear(unit: str) -> None:
    assert_linear(lambda size: scanned(list('["' + unit * size)), 300)
