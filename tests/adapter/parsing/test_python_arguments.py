"""Arguments in Python's syntax: what Python itself reads, passed on as JSON."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.jsontext import read_json
from adapter.parsing.tools.python_arguments import MAX_NAME, PythonArguments
from tests.adapter.parsing.written import IDENTIFIERS, PYTHON_NESTED
from tests.support.feeding import assert_linear, same_however_fed


def read(pieces: list[str]) -> tuple[str, str, str]:
    """(outcome, JSON, rest)"""
    arguments = PythonArguments()
    written, rest = "", ""
    for piece in pieces:
        if arguments.done or arguments.failed:
            rest += piece
        else:
            more, rest = arguments.feed(piece)
            written += more
    outcome = "done" if arguments.done else "failed" if arguments.failed else "running"
    return outcome, written if arguments.done else written + arguments.break_off(), rest


def arguments_of(text: str) -> Any:
    """Asserts that ``text`` is read to its end."""
    outcome, written, rest = same_however_fed(read, text + " after")
    assert (outcome, rest) == ("done", " after")
    return read_json(written)


def by_python(text: str) -> dict[str, Any]:
    call = ast.parse(f"f({text}", mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


@pytest.mark.parametrize(
    "text",
    [
        ")",
        " )",
        "a=1)",
        "a = 1 , b = 2 )",
        "a=1,)",
        "a='x', b=\"y\")",
        "a='', b=\"\")",
        "a='''x'y''z''', b=\"\"\"p\"q\"\"\")",
        "a='''\n''')",
        r"a='\n\t\r\\\'\"\a\b\f\v')",
        r"a='\x41\u00e9\U0001F600\0\12\101')",
        "a='line\\\nline')",
        "a=[1, 'x', None, True, False], b=[], c={})",
        "a=[1,], b={'k': 1,})",
        "a={'k': {'l': [{'m': 1}]}, \"n\": 2})",
        "a=-1, b=+2, c=1_000, d=1.5, e=.5, f=5., g=1e5, h=1E-3)",
        "a=123456789012345678901234567890)",
        "naïve_名='é终😀')",
    ],
)
def test_what_python_reads(text: str) -> None:
    assert arguments_of(text) == by_python(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=true, b=false, c=null)", {"a": True, "b": False, "c": None}),
        ("a='two\nlines')", {"a": "two\nlines"}),
        ("a=(1, 2), b=())", {"a": [1, 2], "b": []}),
        (r"a='\ud83d\ude00')", {"a": "😀"}),
        ("a=1, a=2)", {"a": 2}),
        (r"a='\d\ ')", {"a": "\\d\\ "}),
    ],
)
def test_what_is_meant(text: str, expected: dict[str, Any]) -> None:
    assert arguments_of(text) == expected


@given(st.dictionaries(IDENTIFIERS, PYTHON_NESTED, max_size=3))
def test_whatever_python_writes(arguments: dict[str, Any]) -> None:
    assert arguments_of(", ".join(f"{key}={value!r}" for key, value in arguments.items()) + ")") == arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1)", {}),
        ("'x')", {}),
        ("a)", {}),
        ("a=b)", {"a": None}),
        ("a=f'x')", {"a": None}),
        ("a=1+1)", {"a": None}),
        ("a=1 b=2)", {"a": None}),
        ("a=1, 2)", {"a": None}),
        ("a=1, b=[1, 2})", {"a": None, "b": None}),
        ("a={1: 2})", {"a": None}),
        ("a={'k': 'v', 'l' 1})", {"a": None}),
        ("a=)", {"a": None}),
        (r"a='\ud800')", {"a": None}),
        (r"a='\xzz')", {"a": None}),
        ("a=1e999)", {"a": None}),
        ("a=" + "[" * 300, {"a": None}),
        ("a=" + "1" * 2000 + ")", {"a": None}),
        ("x" * (MAX_NAME + 1) + "=1)", {}),
    ],
)
def test_what_breaks_leaves_nothing_half(text: str, expected: dict[str, Any]) -> None:
    outcome, written, _ = same_however_fed(read, text)
    assert (outcome, json.loads(written)) == ("failed", expected)


@pytest.mark.parametrize("cut", range(len("a='x', b=[1, {'k': 'v'}], c=\"\"\"q\"\"\"")))
def test_cut_off_anywhere_nothing_is_half(cut: int) -> None:
    outcome, written, rest = same_however_fed(read, "a='x', b=[1, {'k': 'v'}], c=\"\"\"q\"\"\")"[:cut])
    assert (outcome, rest) == ("running", "")
    assert set(json.loads(written).values()) <= {None}


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        ("a='", "x"),
        ("a='", "\\n"),
        ("a='", '"'),
        ('a="""', '"\\'),
        ("a=[", "1,"),
        ("a=[", "[],"),
        ("a=1,", "\n"),
        ("", "a=1,"),
    ],
)
def test_cost_is_linear(head: str, unit: str) -> None:
    assert_linear(lambda size: read(list(head + unit * size)), 600)
