"""Requests made up from the server's own description, over a real connection, against the scripted model in a real tritonserver.

Whatever comes, there is an answer, within a time limit, with a status, a content type and a body that the description has; no
5xx but 503. Every operation succeeds with some. Half of the inputs are for a session, a reply and a stored response that there are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from adapter.http.session_name import CLIENT_HEADERS
from tests.fuzz.conftest import FuzzedServer
from tests.fuzz.fuzzing import NEVER, OPERATIONS, WITH_BODY, examples, naming, open_places, send, share, valid_body

# The server runs in this process: its random numbers are none of hypothesis' business.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part)
def test_what_the_description_allows(
    fuzzed: FuzzedServer,
    description: Any,
    connection: requests.Session,
    tried: Callable[[str], Counter[int]],
    path: str,
    method: str,
) -> None:
    statuses = tried(f"{method.upper()} {path}")
    operation = description[path][method]
    numbers = itertools.count()

    def attempt(case: Any, known: bool) -> None:
        sid = f"described-{next(numbers)}"
        if known:
            place_in(case, open_places(fuzzed.url, connection, sid))
        statuses[send(case, fuzzed.url, connection).status_code] += 1
        if known:
            connection.delete(f"{fuzzed.url}/v1/sessions/{sid}")

    body = {"body": valid_body(path)} if (path, method) in WITH_BODY else {}
    attempt(operation.Case(**body), known=True)
    succeeded = any(status < 300 for status in statuses)
    assert succeeded is ((path, method) not in NEVER), statuses

    @examples(share(path))
    @given(case=operation.as_strategy(), known=st.booleans())
    def check(case: Any, known: bool) -> None:
        attempt(case, known)

    check()


def place_in(case: Any, places: dict[str, str]) -> None:
    """Let ``case`` be about what there is."""
    case.path_parameters = {name: places[name] for name in places if f"{{{name}}}" in case.path}
    others = {name: value for name, value in (case.headers or {}).items() if name not in CLIENT_HEADERS}
    case.headers = {**others, **naming(case.path, places["sid"])}
