"""JSON that is written piece by piece is what the json module writes, and can be ended from any point."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapter.jsontext import read_json
from adapter.parsing.tools.json_writer import JsonWriter
from tests.adapter.parsing.test_json_scanner import OBJECTS

Step = tuple[str, Any]


def steps(value: Any, chunk: int) -> list[Step]:
    """What to tell a writer so that it writes ``value``, strings in chunks."""
    match value:
        case dict():
            inner = [step for key, item in value.items() for step in [("key", key), *steps(item, chunk)]]
            return [("open", "{"), *inner, ("close", None)]
        case list():
            return [("open", "["), *(step for item in value for step in steps(item, chunk)), ("close", None)]
        case str():
            chunks = [value[at : at + chunk] for at in range(0, len(value), chunk)]
            return [("open_string", None), *(("characters", text) for text in chunks), ("close_string", None)]
        case _:
            return [("value", value)]


def write(writer: JsonWriter, told: list[Step]) -> str:
    written = ""
    for name, argument in told:
        method = getattr(writer, name)
        method() if argument is None and name != "value" else method(argument)
        written += writer.take()
    return written


@given(OBJECTS, st.integers(1, 3))
def test_what_is_told_is_written(value: dict[str, Any], chunk: int) -> None:
    writer = JsonWriter()
    assert read_json(write(writer, steps(value, chunk))) == json.loads(json.dumps(value))
    assert (writer.depth, writer.innermost) == (0, "")


@given(OBJECTS, st.data())
def test_broken_off_anywhere_every_member_is_null(value: dict[str, Any], data: st.DataObject) -> None:
    told = steps(value, 2)
    writer = JsonWriter()
    written = write(writer, told[: data.draw(st.integers(1, len(told) - 1))])
    writer.break_off()
    result = json.loads(written + writer.take())
    assert set(result) <= set(value)
    assert set(result.values()) <= {None}


def test_lone_surrogates_become_replacement_characters() -> None:
    writer = JsonWriter()
    assert (
        write(writer, [("open", "{"), ("key", "\ud800"), *steps("a\udfffb", 9), ("close", None)])
        == '{"\ufffd":"a\ufffdb"}'
    )


def test_integers_keep_their_digits() -> None:
    number = 10**40
    assert write(JsonWriter(), steps({"n": number}, 1)) == f'{{"n":{number}}}'
