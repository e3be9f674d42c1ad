"""Bodies that are almost valid, and requests that the description does not allow: refusals are as the protocol has them.

A 400 for a body names a field of it; a 5xx is never the answer.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.generation.modes import GenerationMode

from tests.adapter.protocols.test_bad_bodies import JSON, places
from tests.fuzz.conftest import FuzzedServer
from tests.fuzz.fuzzing import (
    EXAMPLES,
    OPERATIONS,
    PREFIX,
    SECONDS,
    WITH_BODY,
    assert_names_a_field,
    examples,
    open_places,
    send,
    share,
    valid_body,
)
from tests.fuzz.test_description import place_in

pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

KINDS = st.sampled_from(
    (None, True, -1, 2**63, 2**64, 1.5, 1e308, "", "x", "\ud800", [], [None], [[]], {}, {"type": "x"})
)
NAMES = st.sampled_from(("x", "", "tools", "messages", "n", "logit_bias", "\ud800", "stream", "store"))

NEGATED = [
    (path, method)
    for path, method in OPERATIONS
    if not path.startswith((PREFIX, "/v1/models/{model}:")) and ((path, method) in WITH_BODY or "?" in path)
]


def is_finite(value: Any) -> bool:
    """As JSON is."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


@st.composite
def spoilt(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """``valid``, with one or two values replaced, left out, or added."""
    body = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 2))):
        found = places(body)
        how = draw(st.sampled_from(("replace", "replace", "remove", "add"))) if found else "add"
        holder, key = draw(st.sampled_from(found)) if found else (body, None)
        value = draw(KINDS | JSON.filter(is_finite))
        match how:
            case "remove":
                del holder[key]
            case "replace":
                holder[key] = value
            case _ if isinstance(holder, list):
                holder.append(value)
            case _:
                holder[draw(NAMES)] = value
    return body


@pytest.mark.parametrize(("path", "method"), WITH_BODY, ids=lambda part: part)
def test_a_body_that_is_almost_valid(
    fuzzed: FuzzedServer,
    description: Any,
    connection: requests.Session,
    tried: Callable[[str], Counter[int]],
    path: str,
    method: str,
) -> None:
    statuses = tried(f"{method.upper()} {path}, almost valid")
    operation = description[path][method]
    numbers = itertools.count()
    reached: dict[str, str] = {}

    @examples(4 * share(path))
    @given(body=spoilt(valid_body(path)))
    def check(body: dict[str, Any]) -> None:
        if not reached or path.endswith("finish"):  # over with its session
            reached.update(open_places(fuzzed.url, connection, f"negative-{next(numbers)}"))
        case = operation.Case(body=body)
        place_in(case, reached)
        response = send(case, fuzzed.url, connection)
        statuses[response.status_code] += 1
        if response.status_code == 400:
            assert_names_a_field(path, body, response.json())

    try:
        check()
    finally:
        for number in range(next(numbers)):
            connection.delete(f"{fuzzed.url}/v1/sessions/negative-{number}", timeout=SECONDS)


@pytest.mark.parametrize(("path", "method"), NEGATED, ids=lambda part: part)
def test_what_the_description_does_not_allow(
    fuzzed: FuzzedServer,
    description: Any,
    connection: requests.Session,
    tried: Callable[[str], Counter[int]],
    path: str,
    method: str,
) -> None:
    statuses = tried(f"{method.upper()} {path}, not as described")

    @examples(EXAMPLES // 2)
    @given(case=description[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case: Any) -> None:
        statuses[send(case, fuzzed.url, connection).status_code] += 1

    check()
