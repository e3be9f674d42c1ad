"""A server that is started again over its journal: agents and trainers go on as if nothing had happened.

Here a server is stopped in good order; ``tests/faults`` kills processes.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.recorder import JournalRecorder
from adapter.storage import journal as journal_module
from adapter.storage.segments import segments
from tests.adapter.http.test_keep import CALL, END, TOOL, ask, finish, open_session, user
from tests.adapter.http.test_prefill import said
from tests.support.engine import Answer, FakeEngine
from tests.support.wait import until


@pytest.fixture
def restart(serve, tmp_path: Path) -> Callable[..., object]:
    """Each call is a server of another process's making, over one journal."""

    def start(engine: FakeEngine, **settings: object):
        return serve(engine, tool_parser="hermes", reasoning_parser="think", journal=tmp_path, **settings)

    return start


def prompt(engine: FakeEngine, number: int = 0) -> list[int]:
    return engine.requests[number].prompt_ids.tolist()


async def test_a_conversation_goes_on_over_a_restart(restart, encode) -> None:
    first, second = [*encode(CALL), END], [*encode("done"), END]
    before, after = FakeEngine([Answer([first])]), FakeEngine([Answer([second])])
    async with restart(before) as server:
        await open_session(server, metadata={"task": 7})
        reply, _ = await ask(server, [user("go")], tools=[TOOL])
    use = reply["content"][-1]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "found"}
    async with restart(after) as server:
        # Without its thinking and with other arguments only the handle in the call's id says which turn this is.
        text = {"type": "text", "text": "I look."}
        history = [user("go"), {"role": "assistant", "content": [text, {**use, "input": {"a": 1, "b": "x"}}]}]
        _, how = await ask(server, [*history, {"role": "user", "content": [result]}], tools=[TOOL])
        assert how == "handle"
        assert prompt(after)[: len(prompt(before)) + len(first)] == [*prompt(before), *first]
        answer = await finish(server)
    (sample,) = answer["samples"]
    assert sample["metadata"]["task"] == 7
    assert answer["turn_count"] == 2
    assert answer["ledger"]["trained"] == len(first) + len(second)


async def test_turn_numbers_and_reply_numbers_go_on(restart, encode) -> None:
    answers = [Answer([[*encode(text), END]]) for text in ("one", "two")]
    async with restart(FakeEngine(answers[:1])) as server:
        await open_session(server)
        async with server.http.post("/s/s/v1/messages", json={"messages": [user("a")]}) as response:
            assert (response.headers["x-rollserve-turn"], response.headers["x-rollserve-reply"]) == ("1", "1")
    async with restart(FakeEngine(answers[1:])) as server:
        async with server.http.post("/s/s/v1/messages", json={"messages": [user("b")]}) as response:
            assert (response.headers["x-rollserve-turn"], response.headers["x-rollserve-reply"]) == ("2", "2")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_whose_end_nobody_took_is_given_again(restart, encode, stream, monkeypatch) -> None:
    monkeypatch.setattr(JournalRecorder, "delivered", lambda *_: None)  # the process died before it could say so
    body = {"messages": [user("a")], "stream": stream, "model": "slime-actor"}
    async with restart(FakeEngine([Answer([encode("on"), [*encode("e"), END]])])) as server:
        await open_session(server)
        async with server.http.post("/s/s/v1/messages", json=body) as response:
            first = await response.read()
    engine = FakeEngine([Answer([[*encode("another"), END]])])
    async with restart(engine) as server:
        shuffled = dict(reversed(body.items()))
        async with server.http.post("/s/s/v1/messages", json=shuffled) as response:
            assert await response.read() == first
            assert response.headers["x-rollserve-turn"] == "1"
        assert not engine.requests
        async with server.http.post("/s/s/v1/messages", json=body) as response:
            assert await response.read() != first, "it was delivered now"


async def test_a_reply_that_the_client_went_on_from_is_not_given_again(restart, encode, monkeypatch) -> None:
    """Though the mark of its delivery was lost: the same question, asked in a new conversation, is sampled anew."""
    monkeypatch.setattr(JournalRecorder, "delivered", lambda *_: None)
    answers = [Answer([[*encode(text), END]]) for text in ("one", "two", "three")]
    async with restart(FakeEngine(answers[:2])) as server:
        await open_session(server)
        await ask(server, [user("a")])
        await ask(server, [user("a"), said("one"), user("b")])
    async with restart(FakeEngine(answers[2:])) as server:
        reply, _ = await ask(server, [user("a")])
        assert reply["content"][0]["text"] == "three"


async def test_a_reply_that_the_client_goes_on_from_after_the_restart_is_not_given_again(
    restart, encode, monkeypatch
) -> None:
    monkeypatch.setattr(JournalRecorder, "delivered", lambda *_: None)
    answers = [Answer([[*encode(text), END]]) for text in ("one", "two", "three")]
    async with restart(FakeEngine(answers[:1])) as server:
        await open_session(server)
        await ask(server, [user("a")])
    async with restart(FakeEngine(answers[1:])) as server:
        await ask(server, [user("a"), said("one"), user("b")])
        reply, _ = await ask(server, [user("a")])
        assert reply["content"][0]["text"] == "three"


async def test_a_delivered_reply_is_not_given_again(restart, encode) -> None:
    body = {"messages": [user("a")]}
    async with restart(FakeEngine([Answer([[*encode("one"), END]])])) as server:
        await open_session(server)
        async with server.http.post("/s/s/v1/messages", json=body) as response:
            await response.read()
    engine = FakeEngine([Answer([[*encode("two"), END]])])
    async with restart(engine) as server:
        reply, _ = await ask(server, [user("a")])
        assert reply["content"][0]["text"] == "two"


async def test_a_cut_reply_can_be_gone_on_from_after_a_restart(restart, encode) -> None:
    given, more, rest = encode("I have"), encode(" four"), [*encode(" three"), END]
    hold = asyncio.Event()
    before = FakeEngine([Answer([given, more], hold=hold, hold_before=1)])
    async with restart(before) as server:
        await open_session(server)
        async with server.http.post("/s/s/v1/messages", json={"messages": [user("x")], "stream": True}) as response:
            while b"have" not in await response.content.readline():
                pass
        await until(lambda: before.closed == 1)
    after = FakeEngine([Answer([rest])])
    async with restart(after) as server:
        _, how = await ask(server, [user("x"), said("I have")])
        assert how == "interrupted"
        assert prompt(after) == [*prompt(before), *given]


async def test_finish_is_the_same_after_a_restart(restart, encode) -> None:
    async with restart(FakeEngine([Answer([[*encode("one"), END]])])) as server:
        await open_session(server)
        await ask(server, [user("a")])
        answer = await finish(server)
    async with restart(FakeEngine()) as server:
        assert await finish(server) == answer
        async with server.http.post("/v1/sessions/s/finish", json={"reward": 2.0}) as response:
            assert response.status == 409
        async with server.http.post("/s/s/v1/messages", json={"messages": [user("b")]}) as response:
            assert response.status == 410
        async with server.http.get("/v1/sessions/s/samples") as response:
            assert await response.json() == answer


async def test_an_opened_session_is_there_and_a_dropped_one_is_not(restart) -> None:
    async with restart(FakeEngine()) as server:
        await open_session(server, "kept", max_turns=3)
        await open_session(server, "gone")
        async with server.http.delete("/v1/sessions/gone") as response:
            assert response.status == 204
    async with restart(FakeEngine()) as server:
        async with server.http.get("/v1/sessions") as response:
            assert (await response.json())["sessions"] == [{"sid": "kept", "state": "stored"}]
        async with server.http.get("/v1/sessions/kept") as response:
            assert (await response.json())["turn_count"] == 0
        async with server.http.get("/v1/sessions/gone") as response:
            assert response.status == 404
        async with server.http.post("/v1/sessions", json={"sid": "kept"}) as response:
            assert response.status == 409


async def test_a_session_keeps_the_policy_that_it_was_opened_under(restart, encode) -> None:
    async with restart(FakeEngine([Answer([[*encode("one"), END]])]), history_policy="template") as server:
        await open_session(server)
        await ask(server, [user("a")])
    async with restart(FakeEngine(), history_policy="keep") as server:
        async with server.http.get("/v1/sessions/s") as response:
            assert (await response.json())["policy"] == "template"


@pytest.mark.parametrize("stream", [False, True])
async def test_on_a_full_disk_nothing_is_half_recorded(restart, encode, stream, monkeypatch) -> None:
    real = os.write
    answers = [Answer([[*encode(text), END]]) for text in ("one", "two", "three")]
    async with restart(FakeEngine(answers)) as server:
        await open_session(server)
        await ask(server, [user("a")])
        monkeypatch.setattr(journal_module.os, "write", _full)
        body = {"messages": [user("a"), said("one"), user("b")], "stream": stream}
        async with server.http.post("/s/s/v1/messages", json=body) as response:
            error = (await response.json())["error"]["message"]
            assert response.status == 503
            assert "cannot be recorded" in error
            assert "No space left" in error
            assert response.headers["Retry-After"] == "5"
        async with server.http.get("/readyz") as response:
            assert response.status == 503
            assert "No space left" in (await response.json())["reason"]
        monkeypatch.setattr(journal_module.os, "write", real)
        reply, how = await ask(server, body["messages"])
        assert (reply["content"][0]["text"], how) == ("three", "exact")
        async with server.http.get("/readyz") as response:
            assert response.status == 200
        answer = await finish(server)
        assert answer["turn_count"] == 2


async def test_the_last_event_waits_for_the_disk(restart, encode, monkeypatch) -> None:
    """What was said before it does not."""
    on_disk, settled = asyncio.Event(), JournalRecorder.settled

    async def wait(self: JournalRecorder) -> None:
        await on_disk.wait()
        await settled(self)

    async with restart(FakeEngine([Answer([encode("on"), [*encode("e"), END]])])) as server:
        await open_session(server)
        monkeypatch.setattr(JournalRecorder, "settled", wait)
        async with server.http.post("/s/s/v1/messages", json={"messages": [user("a")], "stream": True}) as response:
            text = ""
            while '"e"' not in text:
                text += (await response.content.readline()).decode()
            assert "message_delta" not in text
            assert (await _turns(server)) == 1
            on_disk.set()
            text += (await response.read()).decode()
            assert text.rstrip().endswith('{"type":"message_stop"}')


async def test_a_damaged_session_costs_itself_only(restart, encode, tmp_path) -> None:
    async with restart(FakeEngine([Answer([[*encode(text), END]]) for text in ("one", "two")])) as server:
        for sid in ("bad", "good"):
            await open_session(server, sid)
            await ask(server, [user("a")], sid)
    path = tmp_path / "000001" / str(segments(tmp_path / "000001")[0])
    data = bytearray(path.read_bytes())
    opened = data.index(b'"sid":"bad"')
    data[data.index(b'"sid":"bad"', opened + 1) + 60] ^= 1
    path.write_bytes(bytes(data))
    async with restart(FakeEngine([Answer([[*encode("more"), END]])])) as server:
        async with server.http.get("/v1/sessions/bad") as response:
            error = (await response.json())["error"]
            assert response.status == 500
            assert str(path) in error["message"] or "missing" in error["message"]
        _, how = await ask(server, [user("a"), said("two"), user("b")], "good")
        assert how == "exact"
        async with server.http.delete("/v1/sessions/bad") as response:
            assert response.status == 204


async def test_a_session_of_which_nothing_can_be_read_is_not_opened_anew(restart, tmp_path) -> None:
    async with restart(FakeEngine()) as server:
        await open_session(server, "lost")
    path = tmp_path / "000001" / str(segments(tmp_path / "000001")[0])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    async with restart(FakeEngine()) as server:
        for _ in range(2):
            async with server.http.post("/v1/sessions", json={"sid": "lost"}) as response:
                assert response.status == 500
        async with server.http.get("/v1/sessions") as response:
            assert response.status == 200
        async with server.http.delete("/v1/sessions/lost") as response:
            assert response.status == 204
        await open_session(server, "lost")
    async with restart(FakeEngine()) as server:
        async with server.http.get("/v1/sessions/lost") as response:
            assert response.status == 200


async def test_two_servers_do_not_share_a_journal(restart) -> None:
    async with restart(FakeEngine()):
        with pytest.raises(Exception, match="in use by process"):
            async with restart(FakeEngine()):
                pass


def _full(file: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def _turns(server) -> int:
    async with server.http.get("/v1/sessions/s") as response:
        return (await response.json())["turn_count"]
