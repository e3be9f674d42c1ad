"""What is the same message, and what is an edit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.trajectory.likeness import differences, equal, is_empty, is_part, likeness_hash, same_json, text_of
from adapter.trajectory.reasons import Difference, Finding, Reason, most_notable
from adapter.types import Message


def assistant(text: str = "", *calls: tuple[str, Any], thinking: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
        ]
    return message


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


THINKING, WHITESPACE, JSON = Difference.THINKING, Difference.WHITESPACE, Difference.JSON
CALL = ("f", {"a": 1, "b": [1, {"c": "x"}]})

SAME = [
    (assistant("x"), assistant("x"), ()),
    (assistant("x", thinking="t"), assistant("x"), (THINKING,)),
    (assistant("x"), assistant("x", thinking="t"), (THINKING,)),
    (assistant("x", thinking="t "), assistant("x", thinking="t"), (THINKING,)),
    (assistant("x"), {**assistant("x"), "reasoning_content": ""}, ()),
    (assistant("\n x y \n"), assistant("x y"), (WHITESPACE,)),
    (assistant(" \n"), assistant(""), (WHITESPACE,)),
    (assistant(""), {"role": "assistant", "content": None}, (WHITESPACE,)),
    (assistant("x"), {"role": "assistant", "content": [{"type": "text", "text": "x"}]}, (WHITESPACE,)),
    (user("a\nb"), user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), (WHITESPACE,)),
    (user("a\n \nb"), user("a\nb"), (WHITESPACE,)),
    (user("a\nb"), user("ab"), (WHITESPACE,)),
    (assistant("a \n b", CALL), assistant("ab", CALL), (WHITESPACE,)),
    (assistant("", CALL), assistant("", ("f", {"b": [1.0, {"c": "x"}], "a": 1.0})), ()),
    (assistant("", ("f", {"a": 2**53 + 1})), assistant("", ("f", {"a": 2**53})), (JSON,)),
    (assistant("", ("f", {"a": 10**400})), assistant("", ("f", {"a": None})), (JSON,)),
    (assistant("", ("f", {"a": "\ud800!"})), assistant("", ("f", {"a": "\ufffd!"})), (JSON,)),
    (assistant("", ("f", {"a": 1})), assistant("", ("f", '{"a":1}')), ()),
    (
        assistant(" ", ("f", {"a": 2**60 + 1}), thinking="t"),
        assistant("", ("f", {"a": 2**60})),
        (JSON, THINKING, WHITESPACE),
    ),
]

DIFFERENT = [
    (assistant("x"), assistant("y")),
    (assistant("x"), user("x")),
    (assistant("x y"), assistant("xy")),
    (assistant("x"), assistant("")),
    (user("x"), user("X")),
    (assistant("", CALL), assistant("")),
    (assistant("", CALL), assistant("", CALL, CALL)),
    (assistant("", ("f", {"a": 1})), assistant("", ("g", {"a": 1}))),
    (assistant("", ("f", {"a": 1})), assistant("", ("f", {"a": 2}))),
    (assistant("", ("f", {"a": [1]})), assistant("", ("f", {"a": [1, 2]}))),
    (assistant("", ("f", {"a": 2})), assistant("", ("f", {"a": [True]}))),
    (assistant("", ("f", {"a": "1"})), assistant("", ("f", {"a": 1}))),
    (assistant("", ("f", {"a": 1, "b": 2**53 + 1})), assistant("", ("f", {"a": True, "b": 2**53}))),
    (assistant("", ("f", {"a": 2**53 + 1})), assistant("", ("f", {"a": 2**53 + 2}))),
    (assistant("", ("f", {"a": 1})), assistant("", ("f", {}))),
    (assistant("", ("f", {"a": " x"})), assistant("", ("f", {"a": "x"}))),
    ({**user("x"), "name": "a"}, user("x")),
]


@pytest.mark.parametrize(("known", "replay", "found"), SAME)
def test_the_same_message(known: Message, replay: Message, found: tuple[Difference, ...]) -> None:
    assert differences(known, replay) == found
    assert likeness_hash(known) == likeness_hash(replay)


@pytest.mark.parametrize(("known", "replay"), DIFFERENT)
def test_an_edit(known: Message, replay: Message) -> None:
    assert differences(known, replay) is None
    assert differences(replay, known) is None


def test_a_call_that_a_client_could_not_read_comes_back_empty() -> None:
    known, replay = assistant("", ("f", {"a": None})), assistant("", ("f", {}))
    assert differences(known, replay, repaired=True) == (Difference.REPAIRED,)
    assert differences(known, replay) is None


UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def through_javascript(value: Any) -> Any:
    """What is left of a value after a client in JavaScript has read it and written it."""
    if isinstance(value, dict):
        return {key: through_javascript(item) for key, item in reversed(value.items())}
    if isinstance(value, list):
        return [through_javascript(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return None
        return int(number) if number.is_integer() and abs(number) < 2**63 else number if abs(number) < 1e309 else None
    return value


@UNTIMED
@given(JSON_VALUES)
def test_arguments_survive_a_javascript_client(value: Any) -> None:
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    assert same_json(finite, through_javascript(finite))


@UNTIMED
@given(JSON_VALUES, JSON_VALUES)
def test_same_json_holds_wherever_equality_does(left: Any, right: Any) -> None:
    assert same_json(left, left)
    assert same_json(left, right) == same_json(right, left)


def test_deep_nesting_is_no_error() -> None:
    deep: Any = 1
    other: Any = 2
    for _ in range(20_000):
        deep, other = [deep], [other]
    known = assistant("", ("f", {"a": deep}))
    assert not equal(deep, other)
    assert differences(known, assistant("", ("f", {"a": other}))) is None
    assert differences(known, assistant("", ("f", {"a": deep}))) in ((), (JSON,))
    while isinstance(deep, list):  # freeing it all at once would be deep, too
        deep, other = deep[0], other[0]
        known = assistant("", ("f", {"a": deep}))


PARSED = assistant("one two", ("f", {"a": 1}), ("g", {"b": None}), thinking="thought")

PARTS = [
    PARSED,
    assistant("one two"),
    assistant("one"),
    assistant(" one t\n"),
    assistant("one two", ("f", {"a": 1})),
    assistant("", ("f", {"a": 1})),
    assistant("one two", ("f", {"a": 1}), ("g", {})),
    assistant("", thinking="thou"),
    assistant("one", thinking="something else"),
    assistant(""),
]
NO_PARTS = [
    assistant("two"),
    assistant("one two three"),
    assistant("one two", ("f", {"a": 2})),
    assistant("one two", ("f", {})),
    assistant("one two", ("g", {"b": None})),
    assistant("one two", ("f", {"a": 1}), ("g", {}), ("h", {})),
    assistant("", thinking="another thought"),
    user("one"),
]


@pytest.mark.parametrize("replay", PARTS)
def test_a_part_of_a_reply(replay: Message) -> None:
    assert is_part(PARSED, replay)


@pytest.mark.parametrize("replay", NO_PARTS)
def test_no_part_of_a_reply(replay: Message) -> None:
    assert not is_part(PARSED, replay)


def test_what_a_client_sees() -> None:
    assert is_empty(assistant(" \n", thinking="t"))
    assert not is_empty(assistant("", CALL))
    assert not is_empty(assistant("."))
    assert text_of(user([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": ""}])) == "a"
    assert text_of({"role": "user"}) == ""


def test_the_most_notable_reason_counts() -> None:
    assert most_notable([]) is Reason.EXACT
    assert most_notable([Reason.HANDLE, Reason.TOLERANT_JSON, Reason.TOLERANT_THINKING]) is Reason.TOLERANT_JSON
    assert most_notable([Reason.FORK_EDIT, Reason.FORK_MODEL, Reason.EXACT]) is Reason.FORK_MODEL
    for difference in Difference:
        assert Finding(0, False, (difference,), 1).reason.startswith("tolerant:")
        assert Finding(0, True, (difference,), 1).reason is Reason.HANDLE
