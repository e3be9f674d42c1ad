"""Which rule answers: conditions are joined, the first counts, and a rule can be used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from model_repo.scripted.rules import RuleBook
from model_repo.scripted.script import parse_script
from tests.model_repo.doubles import make_request


def decode(ids: Sequence[int]) -> str:
    """One character for each id."""
    return "".join(map(chr, ids))


def answers(rules: list[dict[str, Any]], requests: list[dict[str, Any]], **script: Any) -> list[int | None]:
    """Which rule answers each request; -1 is the default, None nothing."""
    replies = [rule | {"ids": [index]} for index, rule in enumerate(rules)]
    document = {"rules": replies} | script
    book = RuleBook(parse_script(document, lambda text: [], {}), decode)
    found = (book.answer(make_request(**request)) for request in requests)
    return [None if reply is None else reply.ids[0] for reply in found]


def prompt(text: str) -> dict[str, Any]:
    return {"prompt_ids": np.array([ord(character) for character in text], np.int32)}


def test_the_first_rule_that_matches_answers() -> None:
    rules = [{"session": "a"}, {"session_regex": "a|b"}, {}]
    assert answers(rules, [{"session": "a"}, {"session": "b"}, {"session": "c"}, {}]) == [0, 1, 2, 2]


def test_a_regular_expression_matches_the_whole_session() -> None:
    assert answers([{"session_regex": "s[0-9]"}], [{"session": "s1"}, {"session": "s12"}]) == [0, None]


def test_all_conditions_must_hold() -> None:
    rules = [{"session": "a", "turn": 2, "prompt_regex": "x$"}]
    good = {"session": "a", "turn": 2} | prompt("..x")
    bad = [good | {"session": "b"}, good | {"turn": 1}, good | prompt("x.")]
    assert answers(rules, [good, *bad]) == [0, None, None, None]


def test_turn_zero_is_a_condition() -> None:
    assert answers([{"turn": 0}], [{"turn": 0}, {"turn": 1}]) == [0, None]


def test_the_prompt_is_read_at_its_tail_only() -> None:
    rules = [{"prompt_regex": "needle"}]
    requests = [prompt("needle" + "." * 4), prompt("needle" + "." * 5)]
    assert answers(rules, requests, tail_tokens=10) == [0, None]


def test_a_rule_is_used_up_only_by_what_it_answers() -> None:
    rules = [{"session": "a", "times": 2}, {"turn": 7, "times": 1}]
    requests = [{"session": "b"}, {"session": "a"}, {"session": "a"}, {"session": "a"}, {"turn": 7}, {"turn": 7}]
    assert answers(rules, requests, default={"ids": [-1]}) == [-1, 0, 0, -1, 1, -1]


def test_the_rest_of_a_reply_is_the_rest_of_the_one_that_was_begun() -> None:
    """Though its rule is used up, or an earlier one matches; and that is no second use."""
    rules = [{"prompt_regex": "a$", "ids": [1, 2, 3], "times": 1}, {"prompt_regex": "a$", "ids": [4, 5, 6], "times": 2}]
    book = RuleBook(parse_script({"rules": rules, "default": {"ids": [9]}}, lambda text: [], {}), decode)

    def answer(*output: int) -> tuple[int, ...] | None:
        ids = np.array([ord("a"), *output], np.int32)
        reply = book.answer(make_request(prompt_ids=ids, continued=len(output)))
        return None if reply is None else reply.ids

    assert answer() == (1, 2, 3)
    assert answer(1) == answer(1, 2) == (1, 2, 3)
    assert answer(4, 5) == (4, 5, 6)
    assert [answer(), answer(), answer()] == [(4, 5, 6), (4, 5, 6), (9,)]
    assert answer(7) == (9,)
