"""With access keys on: what comes in place of the right key is refused in the protocol's shape, shows nothing and changes nothing.

``victim`` is a session with a stored response whose text, key and metadata are told to nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st

from adapter.http.auth import Role, role_needed
from tests.fuzz.conftest import FuzzedServer
from tests.fuzz.fuzzing import ADMIN, OPERATIONS, SECONDS, WITH_BODY, examples, naming, send, share, valid_body
from tests.fuzz.test_description import place_in

SECRET = "nobody-else-reads-this"
BY_ADMIN = {"x-api-key": ADMIN}
PLACES: tuple[Callable[[str], tuple[dict[str, str], dict[str, str]]], ...] = (
    lambda key: ({"Authorization": f"Bearer {key}"}, {}),
    lambda key: ({"x-api-key": key}, {}),
    lambda key: ({"x-goog-api-key": key}, {}),
    lambda key: ({}, {"key": key}),
)


@dataclass(frozen=True)
class Keys:
    """``places`` are of the victim."""

    places: Mapping[str, str]
    victim: str
    other: str


@pytest.fixture(scope="module")
def keys(keyed: FuzzedServer, connection: requests.Session) -> Keys:
    minted = {}
    for sid in ("victim", "other"):
        body = {"sid": sid, "metadata": {"secret": SECRET if sid == "victim" else ""}}
        opened = connection.post(f"{keyed.url}/v1/sessions", json=body, headers=BY_ADMIN, timeout=SECONDS)
        minted[sid] = opened.json()["session_key"]
    by_victim = {"x-api-key": minted["victim"]}
    body = {"input": SECRET, "stream": True, "background": True}
    said = connection.post(f"{keyed.url}/v1/responses", json=body, headers=by_victim, timeout=SECONDS)
    assert said.status_code == 200, said.text
    response = json.loads(said.text.split("data: ", 1)[1].split("\n", 1)[0])["response"]["id"]
    places = {"sid": "victim", "id": response, "reply": "1", "model": "rollserve", "operation": "pause"}
    return Keys(places, minted["victim"], minted["other"])


@pytest.fixture(scope="module")
def with_keys(keyed: FuzzedServer) -> Any:
    return schemathesis.openapi.from_url(f"{keyed.url}/openapi.json")


def snapshot(url: str, connection: requests.Session) -> list[bytes]:
    """All that can be seen of the sessions and of the engine."""
    paths = (
        "/v1/sessions",
        "/v1/sessions/victim",
        "/v1/sessions/victim/explain",
        "/v1/sessions/victim/samples",
        "/v1/engine",
    )
    return [connection.get(url + path, headers=BY_ADMIN, timeout=SECONDS).content for path in paths]


def wrong_keys(keys: Keys) -> st.SearchStrategy[str | None]:
    """No key; keys of the right form; parts of the right ones; anything that a header can have."""
    known = st.sampled_from((keys.victim, ADMIN))
    ends = st.sampled_from(("", "x", "A"))
    spoilt = st.builds(lambda key, at, end: key[: at % len(key)] + end, known, st.integers(0, 99), ends)
    text = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
    named = st.sampled_from((f"rs-{'A' * 32}.victim", "rs-.victim", "victim", ADMIN.upper()))
    return st.one_of(st.none(), named, spoilt, text).filter(lambda key: key not in (keys.victim, ADMIN))


SECURED = [(path, method) for path, method in OPERATIONS if role_needed(path) is not None]


@pytest.mark.parametrize(("path", "method"), SECURED, ids=lambda part: part)
def test_no_key_and_wrong_keys(
    keyed: FuzzedServer, with_keys: Any, connection: requests.Session, tried: Any, keys: Keys, path: str, method: str
) -> None:
    statuses = tried("all operations, without their key")
    before = snapshot(keyed.url, connection)

    @examples(share(path))
    @given(key=wrong_keys(keys), place=st.sampled_from(PLACES))
    def check(key: str | None, place: Any) -> None:
        headers, query = place(key) if key is not None else ({}, {})
        response = attempt(with_keys[path][method], keyed.url, connection, keys, headers, query)
        statuses[response.status_code] += 1
        assert response.status_code == 401, response.text

    check()
    assert snapshot(keyed.url, connection) == before


@pytest.mark.parametrize(("path", "method"), SECURED, ids=lambda part: part)
def test_another_sessions_key(
    keyed: FuzzedServer, with_keys: Any, connection: requests.Session, tried: Any, keys: Keys, path: str, method: str
) -> None:
    """What the victim's session is named by has no say: a path of its is not there, any other route is the other's own."""
    statuses = tried("all operations, with another session's key")
    before = snapshot(keyed.url, connection)[1:]
    for place in PLACES:
        headers, query = place(keys.other)
        response = attempt(with_keys[path][method], keyed.url, connection, keys, headers, query)
        statuses[response.status_code] += 1
        if role_needed(path) is Role.ADMIN:
            assert response.status_code == 403, response.text
        elif "{sid}" in path or "{id}" in path:
            assert response.status_code == 404, response.text
        else:
            assert response.status_code < 500, response.text
    assert snapshot(keyed.url, connection)[1:] == before


def test_the_right_keys_are_taken(keyed: FuzzedServer, connection: requests.Session, keys: Keys) -> None:
    """Otherwise the tests above show nothing."""
    url = f"{keyed.url}/v1/responses/{keys.places['id']}/input_items"
    for place in PLACES:
        headers, query = place(keys.victim)
        assert SECRET in connection.get(url, headers=headers, params=query, timeout=SECONDS).text
    assert SECRET in connection.get(f"{keyed.url}/v1/sessions/victim", headers=BY_ADMIN, timeout=SECONDS).text


def attempt(
    operation: Any, url: str, connection: requests.Session, keys: Keys, headers: dict[str, str], query: dict[str, str]
) -> requests.Response:
    """A valid request for what is the victim's, with what the caller has; the answer shows nothing of it."""
    body = {"body": valid_body(operation.path)} if (operation.path, operation.method) in WITH_BODY else {}
    case = operation.Case(**body, query=query)
    place_in(case, dict(keys.places))
    case.headers = {**naming(case.path, "victim"), **headers}
    response = send(case, url, connection)
    shown = response.text + str(response.headers)
    assert not [secret for secret in (SECRET, keys.victim, ADMIN) if secret in shown], shown
    return response
