"""A stored response is found by its id alone, whichever worker is asked, and whoever names another session does not find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapter.protocols.openai_responses_reply import session_of_response
from tests.adapter.http.conftest import encode, qwen, serve
from tests.adapter.workers.test_forwarding import ADMIN_KEY, END, MINE, THEIRS, pair
from tests.support.engine import Answer, FakeEngine
from tests.support.server import TestServer

__all__ = ["encode", "qwen", "serve"]

PATH = "/v1/responses"
Call = tuple[aiohttp.ClientResponse, Any]


async def call(server: TestServer, method: str, path: str, body: Any = None, key: str | None = None) -> Call:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with server.http.request(method, path, json=body, headers=headers) as response:
        return response, await response.json()


def answers(encode: Any, *texts: str) -> list[Answer]:
    return [Answer([[*encode(text), END]]) for text in texts]


async def made(server: TestServer, key: str | None = None) -> dict[str, Any]:
    """In the other worker's session, which the body names."""
    body = {"input": "hi", "metadata": {"session_id": THEIRS}}
    response, made = await call(server, "POST", PATH, body, key)
    assert response.status == 200
    assert session_of_response(made["id"]) == THEIRS
    return dict(made)


async def test_an_id_leads_to_the_owner(qwen, encode) -> None:
    async with pair(qwen, *answers(encode, "one", "two")) as two:
        first = await made(two.asked)
        of_it = f"{PATH}/{first['id']}"
        for server in (two.asked, two.other):
            response, body = await call(server, "GET", of_it)
            assert (response.status, body) == (200, first)
            response, body = await call(server, "GET", f"{of_it}/input_items")
            assert [item["content"] for item in body["data"]] == ["hi"]
        on = {"input": "on", "previous_response_id": first["id"]}
        response, body = await call(two.asked, "POST", f"{PATH}/input_tokens", on)
        response, second = await call(two.asked, "POST", PATH, on)
        assert (response.status, response.headers["x-rollserve-match"]) == (200, "exact")
        assert response.headers["x-rollserve-session"] == THEIRS
        assert second["usage"]["input_tokens"] == body["input_tokens"]
        assert (await call(two.asked, "POST", f"{of_it}/cancel"))[0].status == 400
        assert (await call(two.asked, "DELETE", of_it))[0].status == 200
        assert (await call(two.asked, "GET", of_it))[0].status == 404
        assert not two.engines[0].requests
        assert two.asked.state.sessions.names() == []


async def test_who_names_a_session_finds_only_what_is_of_it(qwen, encode) -> None:
    async with pair(qwen, *answers(encode, "one")) as two:
        of_it = f"{PATH}/{(await made(two.asked))['id']}"
        await call(two.asked, "POST", "/v1/sessions", {"sid": MINE})
        assert (await call(two.asked, "GET", f"/s/{THEIRS}{of_it}"))[0].status == 200
        assert (await call(two.asked, "GET", of_it, key=THEIRS))[0].status == 200
        assert (await call(two.asked, "GET", f"/s/{MINE}{of_it}"))[0].status == 404
        for key in (MINE, "another"):
            assert (await call(two.asked, "GET", of_it, key=key))[0].status == 404
            assert (await call(two.asked, "DELETE", of_it, key=key))[0].status == 404


async def test_with_keys_on_an_id_gives_no_access(qwen, encode) -> None:
    async with pair(qwen, *answers(encode, "one", "two"), admin_key=ADMIN_KEY) as two:
        keys = {}
        for sid in (MINE, THEIRS):
            response, body = await call(two.asked, "POST", "/v1/sessions", {"sid": sid}, ADMIN_KEY)
            keys[sid] = body["session_key"]
        first = await made(two.asked, ADMIN_KEY)
        of_it, on = f"{PATH}/{first['id']}", {"input": "on", "previous_response_id": first["id"]}
        for server in (two.asked, two.other):
            assert (await call(server, "GET", of_it))[0].status == 401
            assert (await call(server, "GET", of_it, key=keys[MINE]))[0].status == 404
            response, body = await call(server, "POST", PATH, on, keys[MINE])
            assert (response.status, body["error"]["code"]) == (400, "previous_response_not_found")
            assert (await call(server, "DELETE", of_it, key=keys[MINE]))[0].status == 404
            for key in (keys[THEIRS], ADMIN_KEY):
                assert (await call(server, "GET", of_it, key=key))[1] == first
        response, _ = await call(two.asked, "POST", PATH, on, ADMIN_KEY)
        assert response.headers["x-rollserve-session"] == THEIRS


@pytest.mark.parametrize(
    "response_id", ["resp_" + "0" * 24, "resp_" + "0" * 24 + "bm9ib2R5", "resp_x", "resp_" + "0" * 24 + "_w"]
)
async def test_a_made_up_id_is_of_no_session_and_opens_none(qwen, response_id) -> None:
    async with pair(qwen) as two:
        for server in (two.asked, two.other):
            assert (await call(server, "GET", f"{PATH}/{response_id}"))[0].status == 404
            body = {"input": "on", "previous_response_id": response_id}
            response, error = await call(server, "POST", PATH, body)
            assert (response.status, error["error"]["code"]) == (400, "previous_response_not_found")
        assert two.asked.state.sessions.names() == two.other.state.sessions.names() == []


async def test_an_id_leads_to_the_owner_after_a_restart_and_with_another_number_of_workers(
    qwen, encode, tmp_path: Path, serve
) -> None:
    async with pair(qwen, *answers(encode, "one"), journal=tmp_path) as two:
        first = await made(two.asked)
    on = {"input": "on", "previous_response_id": first["id"]}
    async with pair(qwen, *answers(encode, "two"), journal=tmp_path) as two:
        assert (await call(two.asked, "GET", f"{PATH}/{first['id']}"))[1] == first
        response, second = await call(two.asked, "POST", PATH, on)
        assert (response.status, response.headers["x-rollserve-match"]) == (200, "exact")
    async with serve(FakeEngine(answers(encode, "three")), journal=tmp_path) as server:
        response, _ = await call(server, "POST", PATH, {**on, "previous_response_id": second["id"]})
        assert (response.status, response.headers["x-rollserve-match"]) == (200, "exact")
