"""What a client may take up: headers, tokens, turns at once, memory, time."""

from __future__ import annotations

import asyncio
import json

import pytest

from adapter.admission import Admission
from adapter.config import Config, ConfigError
from adapter.expiry import Expiry
from adapter.reply import LiveReply
from adapter.session import EMPTY_BYTES
from adapter.types import Durability
from engine.errors import EngineUnavailable
from engine.types import FinishReason
from tests.support.engine import Answer, FakeEngine
from tests.support.wait import until

END = 151645
ADMIN = "an-admin-key-of-tests"
KEY = {"x-api-key": ADMIN}
HELLO = {"role": "user", "content": "hi"}
ROUTES = [
    ("/v1/messages", {"messages": [HELLO]}),
    ("/v1/chat/completions", {"messages": [HELLO], "stream": True}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1beta/models/slime-actor:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
]
SECRET = "not-to-be-told-to-anybody"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (f"GET /v1/models?key={SECRET * 400} HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (f"GET /v1/models HTTP/1.1\r\nHost: x\r\nx-api-key: {SECRET * 400}\r\n\r\n", 431),
        (f"GET /v1/models HTTP/1.1\r\nHost: x\r\nx api key: {SECRET}\r\n\r\n", 400),
        (f"{SECRET}\r\n\r\n", 400),
        (f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {SECRET}\r\n\r\n", 400),
    ],
)
async def test_what_is_no_http_is_answered_in_json_that_does_not_repeat_it(serve, sent, status) -> None:
    async with serve(FakeEngine()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert int(head.split(b" ")[1]) == status
        assert b"request-id: req_" in head.lower()
        assert set(json.loads(body)["error"]) == {"type", "message", "field"}
        assert SECRET.encode() not in head + body


async def test_a_sessions_tokens_are_limited(serve, encode) -> None:
    ids = [*encode("hello there"), END]
    engine = FakeEngine([Answer([ids]), Answer([ids[:2]], reason=FinishReason.LENGTH)])
    async with serve(engine, max_session_tokens=1000) as server:
        await server.http.post("/v1/sessions", json={"sid": "a", "max_session_tokens": len(ids) + 2})
        assert (await ask(server))[0] == 200
        assert engine.requests[0].max_tokens == len(ids) + 2
        assert (await ask(server))[0] == 200
        assert engine.requests[1].max_tokens == 2, "what is left"
        status, headers, raw = await ask(server)
        assert (status, headers["x-should-retry"]) == (429, "false")
        assert f"has had its {len(ids) + 2} output tokens" in raw
        assert len(engine.requests) == 2


async def test_turns_wait_in_order_and_beyond_the_queue_are_refused(serve, encode) -> None:
    holds = [asyncio.Event() for _ in range(3)]
    engine = FakeEngine([Answer([[*encode(str(n)), END]], hold=hold) for n, hold in enumerate(holds)])
    async with serve(engine, max_running_turns=1, max_queued_turns=2) as server:
        await server.http.post("/v1/sessions", json={"sid": "a"})
        admission, asked = server.state.services.admission, []
        for place in range(3):
            asked.append(asyncio.create_task(ask(server, text=str(place))))
            await until(lambda place=place: (admission.running, admission.queued) == (1, place))
        for path, body in ROUTES:
            status, headers, raw = await ask(server, path=path, body=body)
            assert (status, headers["Retry-After"]) == (429, "1")
            assert "1 turns run and 2 wait" in raw
            assert "x-should-retry" not in headers
        assert len(engine.requests) == 1
        for place, hold in enumerate(holds):
            await until(lambda place=place: len(engine.requests) == place + 1)
            hold.set()
            assert f'"text":"{place}"' in (await asked[place])[2]
        assert (admission.running, admission.queued) == (0, 0)


async def test_a_queued_client_that_leaves_frees_its_place(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[*encode(text), END]], hold=hold) for text in ("one", "two")])
    async with serve(engine, max_running_turns=1, max_queued_turns=1) as server:
        await server.http.post("/v1/sessions", json={"sid": "a"})
        admission = server.state.services.admission
        running = asyncio.create_task(ask(server, text="first"))
        await until(lambda: admission.running == 1)
        leaves = asyncio.create_task(ask(server, text="leaves"))
        await until(lambda: admission.queued == 1)
        leaves.cancel()
        await until(lambda: admission.queued == 0)
        stays = asyncio.create_task(ask(server, text="stays"))
        await until(lambda: admission.queued == 1)
        hold.set()
        assert '"text":"one"' in (await running)[2]
        assert '"text":"two"' in (await stays)[2]
        assert len(engine.requests) == 2


async def test_who_waits_too_long_is_told_in_time(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("x"), END]], hold=asyncio.Event())])
    async with serve(engine, max_running_turns=1, max_queue_wait_s=0.02, finish_grace_s=0) as server:
        await server.http.post("/v1/sessions", json={"sid": "a"})
        running = asyncio.create_task(ask(server, text="first"))
        await until(lambda: len(engine.requests) == 1)
        status, headers, raw = await ask(server, text="second")
        assert (status, headers["Retry-After"]) == (429, "1")
        assert "waited 0.02 s" in raw
        assert server.state.services.admission.queued == 0
        running.cancel()
        await until(lambda: server.state.services.admission.running == 0)


async def test_an_idle_session_is_in_the_journal_only_and_comes_back_as_it_was(serve, encode, tmp_path) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in ("one", "two")])
    async with serve(engine, journal=tmp_path, session_idle_s=0, admin_key=ADMIN) as server:
        sessions = server.state.sessions
        async with server.http.post("/v1/sessions", json={"sid": "a"}, headers=KEY) as response:
            own = {"x-api-key": (await response.json())["session_key"]}
        reply = json.loads((await ask(server, headers=own))[2])
        session = sessions.find("a")
        number, view, size = session.turns_started, session.trajectory.paths(), session.size
        await Expiry(sessions, server.state.services.config).sweep()
        assert (sessions.live(), sessions.stored()) == ([], ["a"])
        async with server.http.get("/v1/sessions/a", headers=KEY) as response:
            assert (await response.json())["paths"] == json.loads(json.dumps(view))
        back = sessions.find("a")
        assert back is not session
        assert (back.turns_started, back.size) == (number, size)
        history = [HELLO, {"role": "assistant", "content": reply["content"]}, HELLO]
        status, headers, _ = await ask(server, body={"messages": history}, headers=own)
        assert (status, headers["x-rollserve-match"], headers["x-rollserve-turn"]) == (200, "exact", "2")
        assert engine.requests[1].prompt_ids[: engine.requests[0].prompt_ids.size].tolist() == (
            engine.requests[0].prompt_ids.tolist()
        )


async def test_turn_numbers_of_failed_turns_are_not_given_again(serve, encode, tmp_path) -> None:
    engine = FakeEngine([Answer([], error=EngineUnavailable("gone")), Answer([[*encode("x"), END]])])
    async with serve(engine, journal=tmp_path) as server:
        await server.http.post("/v1/sessions", json={"sid": "a"})
        assert (await ask(server))[0] == 503
        assert server.state.sessions.spill(server.state.sessions.find("a"))
        _, headers, _ = await ask(server)
        assert headers["x-rollserve-turn"] == "2"


async def test_a_session_that_is_in_use_stays(serve, encode, tmp_path) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[*encode("x"), END]], hold=hold), *(Answer([[*encode("y"), END]]) for _ in range(2))])
    async with serve(engine, journal=tmp_path, session_idle_s=0, replay_keep_s=0) as server:
        sessions = server.state.sessions
        for sid in ("runs", "followed", "stores", "idle"):
            await server.http.post("/v1/sessions", json={"sid": sid})
        running = asyncio.create_task(ask(server, sid="runs"))
        await until(lambda: len(engine.requests) == 1)
        assert (await ask(server, sid="stores", path="/v1/responses", body={"input": "hi"}))[0] == 200
        async with server.http.get("/v1/sessions/followed/events") as following:
            await following.content.readline()
            await Expiry(sessions, server.state.services.config).sweep()
            assert sessions.stored() == ["idle", "stores"]
        hold.set()
        await running
        await until(lambda: not sessions.find("followed").in_use)
        await Expiry(sessions, server.state.services.config).sweep()
        assert sessions.stored() == ["followed", "idle", "runs", "stores"]


async def test_a_reply_that_was_not_delivered_is_still_there_after_it_was_spilled(
    serve, encode, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(LiveReply, "delivered", lambda self: None)
    engine = FakeEngine([Answer([[*encode("x"), END]])])
    async with serve(engine, journal=tmp_path, session_idle_s=0) as server:
        sessions = server.state.sessions
        await server.http.post("/v1/sessions", json={"sid": "a"})
        first = await ask(server)
        reply = sessions.find("a").replies.get(1)
        assert not sessions.spill(sessions.find("a"))
        assert reply.ended_at is not None
        reply.ended_at -= Config().replay_keep_s
        await Expiry(sessions, server.state.services.config).sweep()
        assert sessions.stored() == ["a"]
        again = await ask(server)
        assert again[2] == first[2]
        assert len(engine.requests) == 1


async def test_past_its_time_a_session_is_dropped_and_that_is_logged(serve, tmp_path, caplog) -> None:
    async with serve(FakeEngine(), journal=tmp_path) as server:
        await server.http.post("/v1/sessions", json={"sid": "old"})
    async with serve(FakeEngine(), journal=tmp_path, session_ttl_s=1000) as server:
        sessions = server.state.sessions
        await server.http.post("/v1/sessions", json={"sid": "new"})
        expiry = Expiry(sessions, server.state.services.config)
        await expiry.sweep()
        assert set(sessions.names()) == {"old", "new"}
        opened_at = sessions.opened_at
        sessions.opened_at = lambda sid: opened_at(sid) - (1001 if sid == "old" else 0)
        await expiry.sweep()
        assert sessions.names() == ["new"]
        (record,) = [record for record in caplog.records if record.getMessage() == "session_expired"]
        assert record.fields["sid"] == "old"
    async with serve(FakeEngine(), journal=tmp_path) as server:
        assert server.state.sessions.names() == ["new"]


async def test_with_a_journal_idle_sessions_make_room(serve, encode, tmp_path) -> None:
    engine = FakeEngine([Answer([[*encode("x"), END]]) for _ in range(2)])
    async with serve(engine, journal=tmp_path, memory_budget_bytes=2 * EMPTY_BYTES) as server:
        sessions = server.state.sessions
        for sid in ("a", "b"):
            await server.http.post("/v1/sessions", json={"sid": sid})
            assert (await ask(server, sid=sid))[0] == 200
        assert (await open_status(server, "c"), sessions.stored()) == (201, ["a"]), "the one that was used longest ago"
        assert sessions.find("a").trajectory.turn_count == 1


async def test_while_there_is_no_room_no_session_is_opened(serve, encode) -> None:
    """Without a journal nothing can be spilled."""
    engine = FakeEngine([Answer([[*encode("x"), END]])])
    async with serve(engine, memory_budget_bytes=EMPTY_BYTES) as server:
        assert await open_status(server, "a") == 201
        assert (await ask(server))[0] == 200
        async with server.http.post("/v1/sessions", json={"sid": "b"}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "5")
        assert [session.sid for session in server.state.sessions.live()] == ["a"]
        await server.http.delete("/v1/sessions/a")
        assert await open_status(server, "b") == 201


def test_idle_sessions_need_a_journal() -> None:
    with pytest.raises(ConfigError, match="session_idle_s needs a journal"):
        Config(session_idle_s=5, durability=Durability.NONE)


async def test_requests_with_more_turns_than_places_run_alone() -> None:
    admission = Admission(2, 10, 5)
    order = []

    async def run(name: str, count: int, go: asyncio.Event) -> None:
        async with admission.places(count):
            order.append(name)
            await go.wait()

    events = [asyncio.Event() for _ in range(4)]
    tasks = []
    for event, (name, count) in zip(events, [("one", 1), ("five", 5), ("another", 1), ("two", 2)], strict=True):
        tasks.append(asyncio.create_task(run(name, count, event)))
        await asyncio.sleep(0)
    assert (order, admission.running, admission.queued) == (["one"], 1, 3)
    for place, seen in enumerate([["one", "five"], ["one", "five", "another"], ["one", "five", "another", "two"]]):
        events[place].set()
        await until(lambda seen=seen: order == seen)
    events[3].set()
    await asyncio.gather(*tasks)
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_place_that_is_given_to_a_client_that_leaves_is_given_on() -> None:
    admission = Admission(1, 10, 5)
    async with admission.places():
        waits = [asyncio.create_task(_hold(admission)) for _ in range(2)]
        await until(lambda: admission.queued == 2)
    waits[0].cancel()  # it has its place, and has not been run since
    await until(waits[1].done)
    assert (admission.running, admission.queued) == (0, 0)


async def _hold(admission: Admission) -> None:
    async with admission.places():
        pass


async def ask(server, sid: str = "a", text: str = "hi", *, path: str = "/v1/messages", body=None, headers=None):
    """Status, headers and text of the answer."""
    body = body or {"messages": [{"role": "user", "content": text}]}
    async with server.http.post(f"/s/{sid}{path}", json=body, headers=headers or {}) as response:
        return response.status, response.headers, await response.text()


async def open_status(server, sid: str) -> int:
    async with server.http.post("/v1/sessions", json={"sid": sid}) as response:
        return response.status
