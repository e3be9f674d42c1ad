"""Access keys: who may do what, whatever they guess."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import click
import pytest
from click.testing import CliRunner

from adapter.access import AccessKeys, named_by
from adapter.config import ConfigError
from adapter.configuring import load_config
from adapter.handles import Handles
from adapter.http.app import build_app
from adapter.http.auth import OF_ONE_SESSION, OPEN
from adapter.logs import ROOT, setup_logging
from adapter.options import config_options
from tests.support.engine import Answer, FakeEngine

ADMIN = "an-admin-key-of-tests"
END = 151645
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
RESPONSES = {"input": "hi"}
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
GEMINI = "/v1beta/models/slime-actor:generateContent"
ROUTES = [
    ("/v1/messages", MESSAGES),
    ("/v1/messages/count_tokens", MESSAGES),
    ("/v1/chat/completions", MESSAGES),
    ("/v1/responses", RESPONSES),
    ("/v1/responses/input_tokens", RESPONSES),
    (GEMINI, CONTENTS),
    ("/v1/models/slime-actor:generateContent", CONTENTS),
    ("/api/console/chat", {"input": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
]
PLACES = [
    lambda key: ({"Authorization": f"Bearer {key}"}, {}),
    lambda key: ({"x-api-key": key}, {}),
    lambda key: ({"x-goog-api-key": key}, {}),
    lambda key: ({}, {"key": key}),
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def engine(encode, count: int = 1) -> FakeEngine:
    return FakeEngine([Answer([[*encode("hello"), END]]) for _ in range(count)])


async def open_session(server, sid: str = "a", **body) -> str:
    """Its key."""
    async with server.http.post("/v1/sessions", json={"sid": sid, **body}, headers=bearer(ADMIN)) as response:
        assert response.status == 201
        return (await response.json())["session_key"]


async def call(server, method: str, path: str, body=None, headers=None, params=None):
    async with server.http.request(method, path, json=body, headers=headers or {}, params=params or {}) as response:
        return response, await response.read()


async def test_without_an_admin_key_nothing_is_asked_for(serve, encode) -> None:
    async with serve(engine(encode)) as server:
        async with server.http.post("/v1/sessions", json={"sid": "a"}) as response:
            assert "session_key" not in await response.json()
        response, _ = await call(server, "POST", "/v1/messages", MESSAGES, bearer("rs-" + "x" * 32 + ".a"))
        assert response.status == 200
        assert response.headers["x-rollserve-session"] == "rs-" + "x" * 32 + ".a"


@pytest.mark.parametrize("place", PLACES)
async def test_a_sessions_key_names_its_session(serve, encode, place) -> None:
    async with serve(engine(encode, 2), admin_key=ADMIN) as server:
        headers, params = place(await open_session(server))
        headers |= {"X-Claude-Code-Session-Id": "something-else"}
        for path in ("/v1/messages", "/s/a/v1/messages"):
            response, _ = await call(server, "POST", path, {**MESSAGES, "user": "b"}, headers, params)
            assert (response.status, response.headers["x-rollserve-session"]) == (200, "a")
        assert server.state.sessions.find("a").trajectory.turn_count == 2
        assert [session.sid for session in server.state.sessions.live()] == ["a"]


@pytest.mark.parametrize("place", PLACES)
async def test_the_admin_key_opens_everything_and_is_nobodys_name(serve, encode, place) -> None:
    async with serve(engine(encode, 3), admin_key=ADMIN) as server:
        headers, params = place(ADMIN)
        await open_session(server)
        for path, body, sid in (
            ("/s/a/v1/messages", MESSAGES, "a"),
            ("/v1/messages", {**MESSAGES, "metadata": {"session_id": "b"}}, "b"),
            ("/v1/messages", MESSAGES, "default"),
        ):
            response, _ = await call(server, "POST", path, body, headers, params)
            assert (response.status, response.headers["x-rollserve-session"]) == (200, sid)
        for path in ("/v1/sessions", "/v1/sessions/a", "/v1/sessions/a/explain", "/v1/sessions/a/samples"):
            assert (await call(server, "GET", path, None, headers, params))[0].status == 200


@pytest.mark.parametrize("prefix", ["", "/s/a"])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_without_a_key_protocols_answer_401_in_their_shape(serve, path, body, prefix) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        await open_session(server)
        for headers in ({}, bearer("a"), bearer(ADMIN[:-1]), bearer("rs-"), {"x-api-key": "é"}):
            response, raw = await call(server, "POST", prefix + path, body, headers)
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            error = json.loads(raw)["error"]
            assert "access key is needed" in error["message"]
            if "console" not in path:
                kind = error["status"] if "ontent" in path else error["type"]
                assert kind in ("UNAUTHENTICATED", "authentication_error")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_session_cannot_be_told_from_none_by_the_key_of_another(serve, path, body) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        key = await open_session(server, "a")
        await open_session(server, "bb")
        answers = []
        for sid in ("bb", "cc"):
            response, raw = await call(server, "POST", f"/s/{sid}{path}", body, bearer(key))
            answers.append((response.status, raw.replace(sid.encode(), b"")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404


FORGED = [
    lambda key: key.replace(".a", ".b"),
    lambda key: key.replace(".a", ""),
    lambda key: key + "a",
    lambda key: "rs-" + "A" * 32 + ".a",
    lambda key: "rs-" + "A" * 32 + ".nobody",
    lambda key: key[: len("rs-")] + key[len("rs-") + 1 :],
    lambda key: key.upper(),
]


@pytest.mark.parametrize("forge", FORGED)
async def test_a_forged_key_is_refused_whosever_it_claims_to_be(serve, forge) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        key = await open_session(server, "a")
        await open_session(server, "b")
        response, raw = await call(server, "POST", "/v1/messages", MESSAGES, bearer(forge(key)))
        assert response.status == 401
        assert json.loads(raw)["error"]["message"] == "an access key is needed, and this is none that is known"


async def test_a_sessions_key_reads_along_in_its_own_session_only(serve, encode) -> None:
    async with serve(engine(encode), admin_key=ADMIN) as server:
        key = await open_session(server, "a")
        await open_session(server, "b")
        await call(server, "POST", "/v1/messages", MESSAGES, bearer(key))
        reading = ["/v1/sessions/{}/history", "/v1/sessions/{}/replies/1/events"]
        for path in reading:
            assert (await call(server, "GET", path.format("a"), None, bearer(key)))[0].status == 200
            assert (await call(server, "GET", path.format("b"), None, bearer(key)))[0].status == 404
            assert (await call(server, "GET", path.format("a")))[0].status == 401
        assert (await call(server, "POST", "/v1/sessions/a/interrupt", {}, bearer(key)))[0].status == 200
        assert (await call(server, "POST", "/v1/sessions/b/interrupt", {}, bearer(key)))[0].status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions"),
        ("POST", "/v1/sessions"),
        ("GET", "/v1/sessions/a"),
        ("GET", "/v1/sessions/a/explain"),
        ("GET", "/v1/sessions/a/samples"),
        ("POST", "/v1/sessions/a/finish"),
        ("DELETE", "/v1/sessions/a"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ],
)
async def test_the_trainers_part_takes_the_admin_key(serve, method, path) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        key = await open_session(server, "a")
        for headers, status in (({}, 401), (bearer(key), 403), (bearer("nonsense"), 401)):
            response, raw = await call(server, method, path, None, headers)
            assert response.status == status
            assert json.loads(raw)["error"]["type"] == {401: "unauthorized", 403: "forbidden"}[status]
        assert [session.sid for session in server.state.sessions.live()] == ["a"]


async def test_what_one_session_issued_is_nothing_in_another(serve, encode) -> None:
    async with serve(engine(encode, 2), admin_key=ADMIN) as server:
        keys = [await open_session(server, sid) for sid in ("a", "b")]
        _, raw = await call(server, "POST", "/v1/responses", RESPONSES, bearer(keys[0]))
        issued = json.loads(raw)["id"]
        for path in (f"/v1/responses/{issued}", f"/v1/responses/{issued}/input_items"):
            assert (await call(server, "GET", path, None, bearer(keys[0])))[0].status == 200
            assert (await call(server, "GET", path, None, bearer(keys[1])))[0].status == 404
        assert (await call(server, "DELETE", f"/v1/responses/{issued}", None, bearer(keys[1])))[0].status == 404
        follow = {**RESPONSES, "previous_response_id": issued}
        assert (await call(server, "POST", "/v1/responses", follow, bearer(keys[1])))[0].status == 400
        assert (await call(server, "POST", "/v1/responses", follow, bearer(keys[0])))[0].status == 200


async def test_models_take_any_key(serve) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        key = await open_session(server)
        for path in ("/v1/models", "/s/a/v1/models", "/v1/models/slime-actor", "/v1beta/models"):
            for headers, status in (({}, 401), (bearer(key), 200), (bearer(ADMIN), 200)):
                assert (await call(server, "GET", path, None, headers))[0].status == status


async def test_health_is_open_and_its_details_are_not(serve) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        assert (await call(server, "GET", "/healthz"))[0].status == 200
        assert json.loads((await call(server, "GET", "/readyz"))[1]) == {"status": "ready"}
        assert "engine_model" in json.loads((await call(server, "GET", "/readyz", None, bearer(ADMIN)))[1])


async def test_a_key_is_asked_for_before_the_body_is_read(serve) -> None:
    async with serve(FakeEngine(), admin_key=ADMIN, max_body_bytes=2048) as server:
        response, _ = await call(server, "POST", "/v1/messages", {"messages": "x" * 4096})
        assert response.status == 401


async def test_a_key_outlives_a_restart_and_its_session(serve, encode, tmp_path) -> None:
    def start(engine: FakeEngine):
        return serve(engine, admin_key=ADMIN, journal=tmp_path)

    async with start(engine(encode)) as server:
        key, over, gone = [await open_session(server, sid) for sid in ("a", "over", "gone")]
        assert (await call(server, "POST", "/v1/messages", MESSAGES, bearer(key)))[0].status == 200
        await call(server, "POST", "/v1/sessions/over/finish", {}, bearer(ADMIN))
        await call(server, "DELETE", "/v1/sessions/gone", None, bearer(ADMIN))
    assert not any(secret in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() for secret in [
        key.encode(), key.split(".")[0].encode(), ADMIN.encode()
    ])  # fmt: skip
    async with start(engine(encode)) as server:
        assert (await call(server, "POST", "/v1/messages", MESSAGES, bearer(over)))[0].status == 410
        assert (await call(server, "POST", "/v1/messages", MESSAGES, bearer(gone)))[0].status == 401
        await open_session(server, "gone")
        assert (await call(server, "POST", "/v1/messages", MESSAGES, bearer(gone)))[0].status == 401
        assert not [session for session in server.state.sessions.live() if session.sid == "a"], "nothing was loaded"
        assert (await call(server, "POST", "/s/a/v1/messages", MESSAGES, bearer(key + "x")))[0].status == 401
        assert not [session for session in server.state.sessions.live() if session.sid == "a"], "nothing was loaded"
        assert (await call(server, "POST", "/v1/messages", MESSAGES, bearer(key)))[0].status == 200
        assert server.state.sessions.find("a").trajectory.turn_count == 2


async def test_no_key_is_ever_logged(serve, encode, capfd) -> None:
    """Not that of a good request, not that of a bad one, wherever it stands."""
    logger, log = logging.getLogger(ROOT), io.StringIO()
    others = logging.StreamHandler(log)
    logging.getLogger().addHandler(others)
    before = (logger.handlers[:], logger.level, logger.propagate)
    setup_logging("json", "debug")
    logger.handlers[0].setStream(log)  # type: ignore[attr-defined]
    try:
        async with serve(engine(encode, 8), admin_key=ADMIN) as server:
            key = await open_session(server)
            wrong = "rs-" + "W" * 32 + ".a"
            for secret in (key, wrong, ADMIN, "a-wrong-key-of-somebody"):
                for place in PLACES:
                    headers, params = place(secret)
                    for method, path, body in (
                        ("POST", "/v1/messages", MESSAGES),
                        ("POST", GEMINI, {"contents": 5}),
                        ("GET", "/nothing", None),
                        ("GET", "/s/b/v1/models/x", None),
                    ):
                        await call(server, method, path, body, headers, params)
            for secret in (key, ADMIN):
                broken = f"GET /v1/models?key={secret} HTTP/1.1\r\nx-api-key: {secret * 400}\r\n\r\n"
                assert secret.encode() not in await _send_raw(server.url, broken)
            text = log.getvalue() + "".join(capfd.readouterr())
            assert text.count('"refused"') > 20
            assert '"turn"' in text
            for secret in (key, key.split(".")[0][3:], "W" * 32, ADMIN, "a-wrong-key-of-somebody"):
                assert secret not in text
    finally:
        logging.getLogger().removeHandler(others)
        logger.handlers[:], logger.level, logger.propagate = before


async def _send_raw(url: str, text: str) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode())
    answer = await reader.read()
    writer.close()
    return answer


def test_the_admin_key_is_not_shown(tmp_path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{ADMIN}\n")
    config = load_config({"admin_key_file": file}, {})
    assert config.admin_key == ADMIN
    assert load_config({}, {"ROLLSERVE_ADMIN_KEY": ADMIN}).admin_key == ADMIN
    assert ADMIN not in repr(config)
    command = click.command()(config_options(lambda config: None))
    shown = CliRunner().invoke(command, ["--help"], env={"ROLLSERVE_ADMIN_KEY": ADMIN}).output
    assert "--admin-key-file" in shown
    assert ADMIN not in shown
    for given, said in (
        ({"admin_key": ADMIN, "admin_key_file": file}, "both set"),
        ({"admin_key": "short"}, "16 or more"),
        ({"admin_key": ADMIN + " x"}, "without spaces"),
        ({"admin_key": True}, "the value"),
        ({"admin_key_file": tmp_path / "none"}, "cannot read"),
    ):
        with pytest.raises(ConfigError, match=said) as raised:
            load_config(given, {})
        assert ADMIN not in str(raised.value)
        assert "short" not in str(raised.value)


def test_fingerprints_are_keyed_and_are_of_one_key_only() -> None:
    handles = Handles()
    minted = AccessKeys(ADMIN, handles).mint("a.b~c")
    assert minted is not None
    assert named_by(minted.text) == "a.b~c"
    assert minted.fingerprint not in minted.text
    assert AccessKeys(ADMIN, handles).matches(minted.text, minted.fingerprint)
    assert not AccessKeys(ADMIN, Handles()).matches(minted.text, minted.fingerprint), "under another key"
    assert AccessKeys(ADMIN, handles).mint("a.b~c") != minted


async def test_every_route_is_open_or_guarded(serve) -> None:
    """A route that is added is the operator's until somebody says otherwise."""
    async with serve(FakeEngine(), admin_key=ADMIN) as server:
        key = await open_session(server, "a")
        for route in build_app(server.state).router.routes():
            canonical = route.resource.canonical if route.resource else ""
            path = canonical.replace("{sid}", "a").replace("{", "").replace("}", "")
            if canonical in OPEN or route.method in ("HEAD", "OPTIONS"):
                continue
            assert (await call(server, route.method, path))[0].status == 401, path
            if canonical.startswith("/v1/sessions") and canonical not in OF_ONE_SESSION:
                assert (await call(server, route.method, path, None, bearer(key)))[0].status == 403, path
