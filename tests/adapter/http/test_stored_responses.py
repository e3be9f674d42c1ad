"""Stored responses that outlast their process: what a client can come back to is in the journal with the turn that made it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adapter import responses as stored
from adapter.cli import cli
from adapter.expiry import Expiry
from adapter.recorder import JournalRecorder
from adapter.storage import journal as journal_module
from adapter.storage.frames import FrameKind
from engine.errors import EngineTimeout
from tests.support.crashing import Client, Crash
from tests.support.engine import Answer, FakeEngine
from tests.support.server import TestServer
from tests.support.sse import events_of
from tests.support.wait import until

PATH = "/v1/responses"
END = 151645
SID = {"Authorization": "Bearer sid"}
LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {}}}
CALL = "<tool_call><function=lookup></function></tool_call>"


@pytest.fixture
def restart(serve, tmp_path: Path) -> Callable[..., Any]:
    """Each call is a server of another process's making, over one journal."""
    return lambda engine, **settings: serve(engine, tool_parser="xml", journal=tmp_path, **settings)


@pytest.fixture
def says(encode) -> Callable[..., FakeEngine]:
    """An engine that says one text after the other."""
    return lambda *texts: FakeEngine([Answer([[*encode(text), END]]) for text in texts])


async def create(server: TestServer, given: Any, **more: Any) -> tuple[dict[str, Any], str]:
    """The response, and how its history was recognised."""
    async with server.http.post(PATH, json={"input": given, **more}, headers=SID) as response:
        assert response.status == 200, await response.text()
        raw = await response.read()
        made = events_of(raw)[-1][1]["response"] if more.get("stream") else json.loads(raw)
        return made, response.headers["x-rollserve-match"]


async def get(server: TestServer, response_id: str, below: str = "", **query: str) -> tuple[int, Any]:
    async with server.http.get(f"{PATH}/{response_id}{below}", params=query, headers=SID) as response:
        raw = await response.read()
        return response.status, events_of(raw) if "event-stream" in response.content_type else json.loads(raw)


async def delete(server: TestServer, response_id: str) -> int:
    async with server.http.delete(f"{PATH}/{response_id}", headers=SID) as response:
        return response.status


async def samples(server: TestServer) -> list[dict[str, Any]]:
    async with server.http.get("/v1/sessions/sid/samples") as response:
        found: list[dict[str, Any]] = (await response.json())["samples"]
        return found


def sizes(server: TestServer, kind: FrameKind = FrameKind.TURN) -> list[int]:
    """Bytes of what the journal has of the session's turns beside ids and log probs: headers, and texts of responses."""
    frames = server.state.sessions.recorder.frames("sid")
    return [len(frame.encode()) for frame in frames if frame.kind == kind]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on_from_a_response_of_an_earlier_process(restart, says, stream) -> None:
    after = says("bye")
    async with restart(says(CALL, "soft")) as server:
        first, _ = await create(server, "hi", tools=[LOOKUP], stream=stream)
        (call,) = first["output"]
        result = [{"type": "function_call_output", "call_id": call["call_id"], "output": "r"}]
        second, _ = await create(server, result, tools=[LOOKUP], previous_response_id=first["id"], stream=stream)
        (sample,) = await samples(server)
    async with restart(after) as server:
        assert [await get(server, each["id"]) for each in (first, second)] == [(200, first), (200, second)]
        _, listed = await get(server, second["id"], "/input_items", order="asc")
        assert [item["type"] for item in listed["data"]] == ["message", "function_call", "function_call_output"]
        assert listed["data"][1]["id"] == call["id"]
        third, how = await create(server, "and?", tools=[LOOKUP], previous_response_id=second["id"], stream=stream)
        assert how == "exact"
        assert third["output"][0]["content"][0]["text"] == "bye"
        (longer,) = await samples(server)
        assert longer["tokens"][: len(sample["tokens"])] == sample["tokens"]
        assert server.state.sessions.find("sid").trajectory.turn_count == 3
    assert after.requests[0].prompt_ids[: len(sample["tokens"])].tolist() == sample["tokens"]


async def test_a_client_that_sends_everything_again_goes_on_too(restart, says) -> None:
    history: list[dict[str, Any]] = []
    async with restart(says("one", "two")) as server:
        for text in ("a", "b"):
            history.append({"role": "user", "content": text})
            made, _ = await create(server, history)
            history += made["output"]
    async with restart(says("three")) as server:
        _, listed = await get(server, made["id"], "/input_items", order="asc")
        assert [item.get("content") for item in listed["data"]] == [item["content"] for item in history[:-1]]
        history.append({"role": "user", "content": "c"})
        assert (await create(server, history))[1] == "exact"


async def test_references_and_branches_are_of_all_that_was_stored(restart, says) -> None:
    async with restart(says("one")) as server:
        first, _ = await create(server, "hi")
    engine = says("two", "two", "three")
    async with restart(engine) as server:
        said = {"role": "user", "content": "hi"}
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        _, how = await create(server, [said, reference, said])
        assert how == "exact"
        _, how = await create(server, "hi", previous_response_id=first["id"])
        assert how == "exact"
    sent = [request.prompt_ids.tolist() for request in engine.requests]
    assert sent[0] == sent[1]


async def test_a_response_whose_end_nobody_took_is_given_again_with_its_id(restart, says, monkeypatch) -> None:
    monkeypatch.setattr(JournalRecorder, "delivered", lambda *_: None)  # the process died before it could say so
    async with restart(says("one", "two")) as server:
        first, _ = await create(server, "hi")
        second, _ = await create(server, "on", previous_response_id=first["id"], stream=True)
    engine = says()
    async with restart(engine) as server:
        assert (await create(server, "on", previous_response_id=first["id"], stream=True))[0] == second
        assert not engine.requests
        status, events = await get(server, second["id"], stream="true", starting_after="2")
        assert (status, events[0][1]["sequence_number"]) == (200, 3)
        assert events[-1][1]["response"] == second


async def test_events_that_were_delivered_are_not_kept_over_a_restart(restart, says) -> None:
    async with restart(says("one")) as server:
        made, _ = await create(server, "hi", stream=True)
    async with restart(says()) as server:
        status, body = await get(server, made["id"], stream="true")
        assert (status, "no longer kept" in body["error"]["message"]) == (410, True)
        assert await get(server, made["id"]) == (200, made)


async def test_what_was_deleted_stays_deleted_and_what_came_after_it_stays(restart, says) -> None:
    async with restart(says("one", "two")) as server:
        first, _ = await create(server, "hi")
        second, _ = await create(server, "on", previous_response_id=first["id"])
        assert await delete(server, first["id"]) == 200
    async with restart(says("three")) as server:
        assert (await get(server, first["id"]))[0] == 404
        async with server.http.post(PATH, json={"input": "x", "previous_response_id": first["id"]}) as response:
            assert (await response.json())["error"]["code"] == "previous_response_not_found"
        _, listed = await get(server, second["id"], "/input_items", order="asc")
        assert [item.get("content") for item in listed["data"]][0::2] == ["hi", "on"]
        assert (await create(server, "and", previous_response_id=second["id"]))[1] == "exact"


async def test_a_response_that_is_deleted_while_it_runs_is_not_there_later(restart, encode, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("on"), [*encode("e"), END]], hold=hold, hold_before=1)])
    async with restart(engine) as server:
        asking = asyncio.create_task(create(server, "hi"))
        await until(lambda: engine.requests)
        (response_id,) = server.state.sessions.find("sid").responses._stored
        assert await delete(server, response_id) == 200
        hold.set()
        assert (await asking)[0]["id"] == response_id
        assert server.state.sessions.find("sid").responses.size == 0
    async with restart(says()) as server:
        assert (await get(server, response_id))[0] == 404
        assert server.state.sessions.find("sid").trajectory.turn_count == 1


async def test_a_deletion_that_cannot_be_recorded_does_not_happen(restart, says, monkeypatch) -> None:
    async with restart(says("one")) as server:
        made, _ = await create(server, "hi")

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as broken:
            broken.setattr(journal_module.os, "write", full)
            assert await delete(server, made["id"]) == 503
        assert await get(server, made["id"]) == (200, made)
        assert await delete(server, made["id"]) == 200


async def test_a_background_response_that_failed_still_says_so(restart, encode, says) -> None:
    hold = asyncio.Event()
    engine = FakeEngine(
        [Answer([encode("one"), encode("two")], error=EngineTimeout("silent"), hold=hold, hold_before=1)]
    )
    async with restart(engine) as server:
        started, _ = await create(server, "hi", background=True)
        hold.set()
        await until(lambda: not server.state.sessions.find("sid").replies.running())
        failed = await get(server, started["id"])
        assert (failed[0], failed[1]["status"]) == (200, "failed")
    async with restart(says()) as server:
        assert await get(server, started["id"]) == failed
        for path, status in (("", 400), ("/cancel", 200)):
            body = {"input": "x", "previous_response_id": started["id"]}
            async with server.http.post(
                f"{PATH}/{started['id']}{path}" if path else PATH, json=body, headers=SID
            ) as again:
                assert again.status == status


async def test_a_background_response_is_there_after_a_restart(restart, says) -> None:
    async with restart(says("one")) as server:
        started, _ = await create(server, "hi", background=True)
        await until(lambda: not server.state.sessions.find("sid").replies.running())
    async with restart(says("two")) as server:
        status, body = await get(server, started["id"])
        assert (status, body["status"], body["background"]) == (200, "completed", True)
        assert (await create(server, "on", previous_response_id=started["id"]))[1] == "exact"


async def test_a_session_that_stores_responses_is_spilled_and_comes_back_as_it_was(restart, says) -> None:
    async with restart(says("one", "two", "three"), session_idle_s=0) as server:
        sessions = server.state.sessions
        first, _ = await create(server, "hi")
        second, _ = await create(server, "on", previous_response_id=first["id"])
        size, responses = sessions.find("sid").size, sessions.find("sid").responses.size
        assert responses > len(json.dumps(second))
        await Expiry(sessions, server.state.services.config).sweep()
        assert sessions.stored() == ["sid"]
        assert await get(server, first["id"]) == (200, first)
        assert (sessions.find("sid").size, sessions.find("sid").responses.size) == (size, responses)
        await Expiry(sessions, server.state.services.config).sweep()
        assert sessions.stored() == ["sid"]
        assert (await create(server, "and", previous_response_id=second["id"]))[1] == "exact"


async def test_no_more_is_kept_after_a_restart_than_before(restart, says, monkeypatch) -> None:
    monkeypatch.setattr(stored, "MAX_RESPONSES", 2)
    made: list[dict[str, Any]] = []
    async with restart(says("a", "b", "c", "d")) as server:
        for _ in range(4):
            made.append((await create(server, "hi", **({"previous_response_id": made[-1]["id"]} if made else {})))[0])
        size = server.state.sessions.find("sid").responses.size
    async with restart(says("e")) as server:
        assert [(await get(server, each["id"]))[0] for each in made] == [404, 404, 200, 200]
        assert server.state.sessions.find("sid").responses.size == size
        assert (await create(server, "on", previous_response_id=made[-1]["id"]))[1] == "exact"


@pytest.mark.parametrize("replays", [False, True])
async def test_what_a_turn_adds_to_the_journal_does_not_grow_with_the_history(restart, says, replays) -> None:
    """Whether the client names the response before or sends everything again."""
    turns = 24
    async with restart(says(*["some words"] * turns)) as server:
        history: list[dict[str, Any]] = []
        previous: dict[str, str] = {}
        for _ in range(turns):
            said = {"role": "user", "content": "a question of some length " * 8}
            history.append(said)
            made, _ = await create(server, history if replays else [said], **previous)
            history += made["output"]
            previous = {} if replays else {"previous_response_id": made["id"]}
        written = sizes(server)
    # The first turn has the head; from then on only numbers get longer.
    assert max(written[2:]) - min(written[2:]) < 64, written
    assert sum(written[2:12]) * 1.02 > sum(written[-10:])


async def test_a_compaction_takes_the_wire_of_what_was_delivered_and_leaves_the_response(restart, says) -> None:
    async with restart(says("one", "two", "three"), journal_segment_bytes=4096) as server:
        first, _ = await create(server, "hi " * 1500, stream=True)
        second, _ = await create(server, "on " * 1500, previous_response_id=first["id"])
        await create(server, "and", store=False)
        recorder = server.state.sessions.recorder
        assert isinstance(recorder, JournalRecorder) and recorder.compactor is not None
        await recorder.compactor.run()
        arrays = [set(frame.arrays) for frame in recorder.frames("sid") if frame.kind == FrameKind.TURN]
        assert ["response_body" in names for names in arrays] == [True, True, False]
        assert "wire" not in arrays[0]
    async with restart(says("four")) as server:
        assert [await get(server, each["id"]) for each in (first, second)] == [(200, first), (200, second)]
        assert (await create(server, "x", previous_response_id=second["id"]))[1] == "exact"


async def test_a_journal_that_holds_no_responses_is_read(restart, says, monkeypatch) -> None:
    """As it was written before they were recorded."""
    turn = JournalRecorder.turn
    with monkeypatch.context() as before:
        before.setattr(JournalRecorder, "turn", lambda self, sid, saved, reply, response: turn(self, sid, saved, reply))
        async with restart(says("one")) as server:
            first, _ = await create(server, "hi")
    async with restart(says("two")) as server:
        assert (await get(server, first["id"]))[0] == 404
        again = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "on"}]
        assert (await create(server, again))[1] == "exact"


async def test_cat_shows_what_is_stored(restart, says, tmp_path: Path) -> None:
    async with restart(says("one", "two")) as server:
        first, _ = await create(server, "hi")
        second, _ = await create(server, "on", previous_response_id=first["id"])
        await delete(server, first["id"])
    result = CliRunner().invoke(cli, ["journal", "cat", str(tmp_path), "--kind", "turn", "--kind", "response_deleted"])
    assert result.exit_code == 0, result.output
    *turns, deleted = [json.loads(line) for line in result.stdout.splitlines()]
    made = {"streamed": False, "background": False, "complete": True}
    assert [turn["response"] for turn in turns] == [
        {"id": first["id"], "after": None, **made},
        {"id": second["id"], "after": {"id": first["id"], "output": True}, **made},
    ]
    assert turns[1]["arrays"]["response_input"] == len('[{"type":"message","role":"user","content":"on"}]')
    assert (deleted["kind"], deleted["response_id"]) == ("response_deleted", first["id"])
    assert CliRunner().invoke(cli, ["journal", "check", str(tmp_path)]).exit_code == 0


async def test_responses_end_with_their_session(restart, says) -> None:
    async with restart(says("one")) as server:
        made, _ = await create(server, "hi")
        async with server.http.post("/v1/sessions/sid/finish", json={}) as response:
            assert response.status == 200
    async with restart(says()) as server:
        assert (await get(server, made["id"]))[0] == 404
        body = {"input": "on", "previous_response_id": made["id"]}
        async with server.http.post(PATH, json=body) as response:
            assert response.status == 400
        assert server.state.sessions.names() == [], "an id opens no session"


async def test_a_process_that_is_killed_loses_no_response_that_a_client_has(crash: Crash, restart, says) -> None:
    pid, client = await crash.start(None)
    told: list[dict[str, Any]] = []

    async def talk(http: Any) -> None:
        while len(told) < 3:
            previous = {"previous_response_id": told[-1]["id"]} if told else {}
            body = {"input": "go on", "stream": True, "model": "slime-actor", **previous}
            async with http.post(PATH, json=body, headers=SID) as response:
                told.append(events_of(await response.read())[-1][1]["response"])
        crash.end(pid, kill=True)
        async with http.get("/healthz"):
            pass

    await Client(client.url).until_gone(talk)
    assert [each["status"] for each in told] == ["completed"] * 3
    async with restart(says("new")) as server:
        assert [await get(server, each["id"]) for each in told] == [(200, each) for each in told]
        assert (await create(server, "go on", previous_response_id=told[-1]["id"]))[1] == "exact"
        assert server.state.sessions.find("sid").trajectory.turn_count == 4
