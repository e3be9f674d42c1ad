"""Items that responses share, and what they take."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapter.items import ItemBytes, Items, followed_by, shared

ITEM = st.fixed_dictionaries({"content": st.text(max_size=4)})
ITEMS = st.lists(ITEM, max_size=6)


def item(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def known(*there: Items) -> Any:
    return {each.digest: each for each in there}.get


@given(ITEMS, ITEMS, ITEMS)
def test_items_are_read_as_they_came_and_their_digest_says_nothing_about_where_arrays_begin(
    first, second, third
) -> None:
    whole = followed_by(None, first + second + third)
    parts = followed_by(followed_by(followed_by(None, first), second), third)
    assert whole.read() == parts.read() == first + second + third
    assert whole.digest == parts.digest
    assert (followed_by(None, first).digest == whole.digest) is not bool(second + third)


def test_what_is_known_is_not_held_again() -> None:
    short = followed_by(None, [item("a")])
    longer = followed_by(short, [item("b"), item("c")])
    made, found = shared(None, [item(text) for text in "abcd"], known(short, longer))
    assert found is longer
    assert made.before is longer
    assert made.text == b'[{"role":"user","content":"d"}]'
    assert made.read() == [item(text) for text in "abcd"]
    other, found = shared(None, [item("x"), item("b")], known(short, longer))
    assert (other.before, found) == (None, None)
    same, found = shared(None, [item("a")], known(short, longer))
    assert (same.text, same.read(), found) == (b"[]", [item("a")], short)


def test_a_text_counts_once_and_as_long_as_somebody_needs_it() -> None:
    count = ItemBytes()
    start = followed_by(None, [item("a")])
    left, right = followed_by(start, [item("left")]), followed_by(start, [item("right")])
    count.hold(left)
    count.hold(right)
    assert count.size == sum(len(each.text) for each in (start, left, right))
    count.let_go(left)
    assert count.size == len(start.text) + len(right.text)
    count.let_go(right)
    assert count.size == 0
