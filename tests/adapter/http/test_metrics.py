"""What ``GET /metrics`` says after turns of every kind: exact counts, and never a label that a client made up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from adapter.expiry import Expiry
from adapter.http.metrics import LoopLag
from engine.breaker import BreakerState
from engine.endpoint import EndpointState
from engine.errors import EngineFailed, EngineUnavailable
from engine.types import FinishReason
from tests.support.engine import Answer, FakeEngine
from tests.support.metrics import scrape
from tests.support.wait import until

END = 151645
ADMIN = "an-admin-key-of-tests"
HELLO = {"role": "user", "content": "hi"}
BODY = {"messages": [HELLO]}
ROUTES = [
    ("/v1/messages", BODY, "anthropic", "/v1/messages"),
    ("/v1/chat/completions", BODY, "openai_chat", "/v1/chat/completions"),
    ("/v1/responses", {"input": "hi"}, "openai_responses", "/v1/responses"),
    (
        "/v1beta/models/slime-actor:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        "gemini",
        None,
    ),
]
BROKEN_CALL = '<tool_call>\n{"name": "look", "arguments": \n</tool_call>'
TOOL = {"name": "look", "input_schema": {"type": "object"}}


async def post(server, path="/v1/messages", body=BODY, **headers):
    async with server.http.post(path, json=body, headers=headers) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(("path", "body", "protocol", "route"), ROUTES)
async def test_a_turn_is_counted_by_protocol_and_model(serve, encode, path, body, protocol, route) -> None:
    ids = [*encode("hello there"), END]
    engine = FakeEngine([Answer([ids[:1], ids[1:]], cached_tokens=4)])
    async with serve(engine) as server:
        assert (await post(server, path, body))[0] == 200
        seen = await scrape(server.http)
    labels = {"protocol": protocol, "model": "slime-actor", "worker": "0"}
    assert seen.of("rollserve_turns_total", outcome="stop", **labels) == seen["rollserve_turns_total"] == 1
    assert seen.of("rollserve_prompt_tokens_total", **labels) == engine.requests[0].prompt_ids.size
    assert seen.of("rollserve_cached_prompt_tokens_total", **labels) == 4
    assert seen.of("rollserve_output_tokens_total", **labels) == len(ids)
    assert seen.of("rollserve_time_to_first_token_seconds_count", **labels) == 1
    assert seen.of("rollserve_inter_token_seconds_count", **labels) == 1, "one of two messages has one before it"
    assert seen.of("rollserve_turn_seconds_count", **labels) == 1
    stages = dict.fromkeys(("queue", "prepare", "generate", "commit", "journal"), 1)
    assert seen.by("rollserve_turn_stage_seconds_count", "stage") == stages
    assert seen.by("rollserve_history_matches_total", "reason") == {"new": 1}
    if route is not None:
        assert seen.of("rollserve_http_requests_total", method="POST", route=route, status="200") == 1


async def test_history_is_counted_by_how_it_matched(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in ("one", "two", "three")])
    async with serve(engine) as server:
        await post(server)
        for content in ("one", "one "):
            await post(server, body={"messages": [HELLO, {"role": "assistant", "content": content}, HELLO]})
        seen = await scrape(server.http)
    assert seen.by("rollserve_history_matches_total", "reason") == {"new": 1, "exact": 1, "tolerant:whitespace": 1}
    assert seen.by("rollserve_history_differences_total", "difference") == {"whitespace": 1}
    assert seen.by("rollserve_sessions", "state") == {"idle": 1}
    assert seen["rollserve_session_memory_bytes"] == sum(one.size for one in server.state.sessions.live())


async def test_what_is_wrong_with_a_turn_is_counted(serve, encode) -> None:
    zeros = encode("a few words that are more than sixteen tokens long, so that nobody believes their log probs")
    engine = FakeEngine(
        [
            Answer([[*encode(BROKEN_CALL), END]]),
            Answer([zeros], log_probs=[0.0] * len(zeros), reason=FinishReason.LENGTH),
        ]
    )
    async with serve(engine) as server:
        await post(server, body={**BODY, "tools": [TOOL]})
        await post(server)
        seen = await scrape(server.http)
    assert seen["rollserve_ill_formed_turns_total"] == 1
    assert seen.by("rollserve_untrainable_turns_total", "reason") == {"suspect_logprobs": 1}
    assert seen.by("rollserve_turns_total", "outcome") == {"stop": 1, "length": 1}


async def test_turns_that_fail_are_counted_by_their_error(serve, encode) -> None:
    first = encode("first")
    engine = FakeEngine([Answer([first, encode("second")], error=EngineFailed("it broke"))])
    async with serve(engine, max_context_tokens=100) as server:
        assert (await post(server))[0] == 502
        assert (await post(server, body={"messages": [{"role": "user", "content": "long " * 200}]}))[0] == 400
        engine.unavailable = EngineUnavailable("gone")
        assert (await post(server))[0] == 503
        seen = await scrape(server.http)
    assert seen.by("rollserve_turns_total", "outcome") == {"upstream_failed": 1, "prompt_too_long": 1, "unavailable": 1}
    assert seen["rollserve_interrupted_tokens_total"] == len(first) + len(encode("second"))
    assert seen["rollserve_output_tokens_total"] == seen["rollserve_turn_seconds_count"] == 0
    assert seen.by("rollserve_http_requests_total", "status") == {"502": 1, "400": 1, "503": 1}


async def test_clients_that_leave_and_turns_that_are_stopped_are_told_apart(serve, encode) -> None:
    answers = [Answer([encode("first"), encode("second")], hold=asyncio.Event(), hold_before=1) for _ in range(2)]
    async with serve(FakeEngine(answers)) as server:
        turns = server.state.services.watching.metrics
        async with server.http.post("/v1/messages", json={**BODY, "stream": True}) as response:
            await response.content.readany()
            assert (await scrape(server.http)).by("rollserve_sessions", "state") == {"running": 1}
            assert (await scrape(server.http))["rollserve_turns_running"] == 1
            assert (await scrape(server.http)).of("rollserve_event_buffer_bytes", kind="running") > 0
        await until(lambda: turns.registry.get_sample_value("rollserve_turns_total", _turn("client_gone")))
        asked = asyncio.create_task(post(server))
        await until(lambda: server.state.services.admission.running)
        assert (await post(server, "/v1/sessions/default/interrupt", {}))[0] == 200
        assert (await asked)[0] == 410
        seen = await scrape(server.http)
    assert seen.by("rollserve_turns_total", "outcome") == {"client_gone": 1, "interrupted": 1}
    assert seen["rollserve_interrupted_tokens_total"] == 2 * len(encode("first"))
    assert seen.by("rollserve_http_requests_total", "status")["499"] == 1


def _turn(outcome):
    return {"protocol": "anthropic", "model": "slime-actor", "outcome": outcome}


async def test_the_choices_of_a_reply_are_turns(serve, encode) -> None:
    ids = [*encode("hello"), END]
    async with serve(FakeEngine([Answer([ids]), Answer([ids])])) as server:
        assert (await post(server, "/v1/chat/completions", {**BODY, "n": 2}))[0] == 200
        seen = await scrape(server.http)
    assert seen["rollserve_turns_total"] == seen["rollserve_turn_seconds_count"] == 2
    assert seen["rollserve_output_tokens_total"] == 2 * len(ids)
    assert seen.of("rollserve_turn_stage_seconds_count", stage="queue") == 2


async def test_the_queue_is_counted(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[*encode("a"), END]], hold=hold), Answer([[*encode("b"), END]])])
    async with serve(engine, max_running_turns=1, max_queued_turns=1) as server:
        running = asyncio.create_task(post(server))
        await until(lambda: len(engine.requests) == 1)
        waiting = asyncio.create_task(post(server, body={"messages": [HELLO, HELLO]}))
        await until(lambda: server.state.services.admission.queued == 1)
        assert (await post(server))[0] == 429
        seen = await scrape(server.http)
        assert (seen["rollserve_turns_running"], seen["rollserve_turns_queued"]) == (1, 1)
        hold.set()
        assert [(await each)[0] for each in (running, waiting)] == [200, 200]
        seen = await scrape(server.http)
    assert seen.by("rollserve_turns_total", "outcome") == {"stop": 2, "too_many_requests": 1}


async def test_retries_are_counted_by_what_they_were_given(serve, encode, monkeypatch) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[*encode("a"), END]], hold=hold)])
    async with serve(engine) as server:
        asked = [asyncio.create_task(post(server, **{"Idempotency-Key": "k"})) for _ in range(2)]
        await until(lambda: len(engine.requests) == 1)
        reply = server.state.sessions.find("default").replies.get(1)
        await until(lambda: reply._readers == 2)
        monkeypatch.setattr(reply, "delivered", lambda: None)
        hold.set()
        assert (await asked[0])[1] == (await asked[1])[1] == (await post(server))[1]
        seen = await scrape(server.http)
    assert seen.by("rollserve_retries_total", "kind") == {"joined": 1, "replayed": 1}
    assert seen["rollserve_turns_total"] == 1


async def test_what_becomes_of_sessions_and_their_tokens(serve, encode, tmp_path) -> None:
    ids = [*encode("hello there"), END]
    answers = [Answer([ids]), Answer([ids], reason=FinishReason.LENGTH), Answer([ids])]
    async with serve(FakeEngine(answers), journal=tmp_path, session_idle_s=0) as server:
        sessions, config = server.state.sessions, server.state.services.config
        for sid in ("a", "b", "c"):
            await post(server, "/v1/sessions", {"sid": sid})
            await post(server, f"/s/{sid}/v1/messages")
        await Expiry(sessions, config).sweep()
        assert (await post(server, "/v1/sessions/a/finish", {}))[0] == 200
        assert (await post(server, "/v1/sessions/a/finish", {}))[0] == 200, "the same finish again counts once"
        assert (await post(server, "/v1/sessions/b/finish", {"filters": {"drop_truncated": True}}))[0] == 200
        async with server.http.delete("/v1/sessions/c") as response:
            assert response.status == 204
        seen = await scrape(server.http)
    happened = {"opened": 3, "spilled": 3, "loaded": 3, "finished": 2, "dropped": 1}
    assert seen.by("rollserve_session_events_total", "event") == happened
    assert seen.by("rollserve_sessions", "state") == {"finished": 2}
    assert seen["rollserve_trained_tokens_total"] == len(ids)
    assert seen.by("rollserve_dropped_tokens_total", "reason") == {"truncated": len(ids)}
    assert seen.by("rollserve_journal_frames_total", "kind")["turn"] == 3
    journal = sessions.recorder.journal
    assert seen["rollserve_journal_written_bytes_total"] == journal.written
    assert seen["rollserve_journal_bytes"] == sum(file.stat().st_size for file in journal.folder.glob("*.journal"))
    assert seen["rollserve_journal_segments"] == 1
    assert seen["rollserve_journal_sync_seconds_count"] > 0
    assert seen["rollserve_journal_unsynced_bytes"] == seen["rollserve_journal_unsynced_seconds"] == 0


async def test_what_waits_for_the_disk_is_told(serve, encode, tmp_path, monkeypatch) -> None:
    async with serve(FakeEngine(), journal=tmp_path) as server:
        journal = server.state.sessions.recorder.journal
        monkeypatch.setattr(journal, "_synced", journal.written - 100)
        monkeypatch.setattr(journal, "_behind_since", time.monotonic() - 5)
        monkeypatch.setattr(journal, "errors", 2)
        seen = await scrape(server.http)
    assert seen["rollserve_journal_unsynced_bytes"] == 100
    assert seen["rollserve_journal_unsynced_seconds"] >= 5
    assert seen["rollserve_journal_errors_total"] == 2


async def test_no_client_makes_a_label(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("a"), END]]) for _ in range(20)])
    async with serve(engine, model_alias=("*",)) as server:
        for number in range(20):
            sid = f"session-{number}"
            await post(server, body={**BODY, "model": f"unheard-of-{number}"}, **{"x-api-key": sid})
            async with server.http.request("PROPFIND", f"/unheard-of-{number}") as response:
                assert response.status == 404
            async with server.http.put(f"/s/{sid}/v1/messages") as response:
                assert response.status == 405
        seen = await scrape(server.http)
    assert seen.by("rollserve_turns_total", "model") == {"slime-actor": 20}
    assert seen.by("rollserve_http_requests_total", "route") == {"/v1/messages": 20, "other": 40}
    assert seen.by("rollserve_http_requests_total", "method") == {"POST": 20, "other": 40}
    assert not [key for key in seen.values if "unheard" in str(key) or "session-" in str(key)]


async def test_what_is_no_http_is_counted_too(serve) -> None:
    async with serve(FakeEngine()) as server:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(b"hello\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
        seen = await scrape(server.http)
    assert seen.of("rollserve_http_requests_total", method="other", route="other", status="400") == 2


async def test_access(serve) -> None:
    for public, status in ((False, 401), (True, 200)):
        async with serve(FakeEngine(), admin_key=ADMIN, metrics_public=public) as server:
            async with server.http.get("/metrics") as response:
                assert response.status == status
            assert (await scrape(server.http, Authorization=f"Bearer {ADMIN}"))["rollserve_worker_up"] == 1
            async with server.http.post("/v1/sessions", headers={"x-api-key": ADMIN}) as response:
                key = (await response.json())["session_key"]
            async with server.http.get("/metrics", headers={"x-api-key": key}) as response:
                assert response.status == (200 if public else 403)


@dataclass
class PooledEngine(FakeEngine):
    """A fake engine that has endpoints."""

    held: bool = True
    states: tuple[EndpointState, ...] = field(
        default=(
            EndpointState("one:1", True, False, 3, 7, None, BreakerState.CLOSED),
            EndpointState("two:2", False, True, 1, None, "gone", BreakerState.OPEN, 5),
        )
    )

    def endpoints(self) -> tuple[EndpointState, ...]:
        return self.states


async def test_endpoints_are_told_one_by_one_once_for_all_adapters(serve) -> None:
    async with serve(PooledEngine(), lora=("a", "b")) as server:
        seen = await scrape(server.http)
    assert seen.by("rollserve_engine_held", "model") == {"slime-actor": 1}
    assert seen.by("rollserve_engine_up", "endpoint") == {"one:1": 1}
    assert seen.by("rollserve_engine_draining", "endpoint") == {"two:2": 1}
    assert seen.by("rollserve_engine_breaker_open", "endpoint") == {"two:2": 1}
    assert seen.by("rollserve_engine_failures_total", "endpoint") == {"two:2": 5}
    assert seen.by("rollserve_engine_live", "endpoint") == {"one:1": 3, "two:2": 1}
    assert seen.by("rollserve_engine_weight_version", "endpoint") == {"one:1": 7}


async def test_turns_that_wait_for_an_endpoint_are_held(serve, encode) -> None:
    hold = asyncio.Event()
    engine = PooledEngine([Answer([[*encode(text), END]], hold=hold) for text in "ab"])
    engine.states = (EndpointState("one:1", True, False, 1, 7, None, BreakerState.CLOSED),)
    async with serve(engine) as server:
        asked = [asyncio.create_task(post(server)) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        assert (await scrape(server.http))["rollserve_turns_held"] == 1
        hold.set()
        assert [(await each)[0] for each in asked] == [200, 200]
        engine.states = ()
        assert (await scrape(server.http))["rollserve_turns_held"] == 0


async def test_a_loop_that_is_late_is_seen() -> None:
    seen: list[float] = []
    lag = LoopLag(seen.append)
    await lag.start(None)  # type: ignore[arg-type]
    lag._due -= 3
    await until(lambda: len(seen) >= 2)
    await lag.stop(None)  # type: ignore[arg-type]
    assert seen[0] >= 3 > seen[1]


async def test_a_session_that_expires_is_dropped_too(serve) -> None:
    async with serve(FakeEngine(), session_ttl_s=0) as server:
        await post(server, "/v1/sessions", {"sid": "a"})
        await Expiry(server.state.sessions, server.state.services.config).sweep()
        seen = await scrape(server.http)
    assert seen.by("rollserve_session_events_total", "event") == {"opened": 1, "dropped": 1, "expired": 1}
