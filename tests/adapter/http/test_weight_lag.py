"""How far the weights in force may run ahead of what a session has sampled: what is dropped, and when it ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.engine import INFO, Answer, FakeEngine

END = 151645
USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "hello"}
FIRST, SECOND = [USER], [USER, SAID, USER]


def at(version: int) -> Any:
    return dataclasses.replace(INFO, weight_version=version)


async def opened(server: Any, **settings: Any) -> None:
    async with server.http.post("/v1/sessions", json={"sid": "s", **settings}) as response:
        assert response.status == 201, await response.text()


async def turn(server: Any, messages: list[Any]) -> tuple[int, Any]:
    async with server.http.post("/s/s/v1/chat/completions", json={"messages": messages}) as response:
        return response.status, await response.json()


async def finished(server: Any, **body: Any) -> dict[str, Any]:
    async with server.http.post("/v1/sessions/s/finish", json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


@pytest.mark.parametrize(
    ("settings", "body", "dropped"),
    [
        ({"max_weight_lag": 1}, {}, 2),
        ({"max_weight_lag": 2}, {}, 0),
        ({"max_weight_lag": 0, "on_weight_lag": "drop"}, {"filters": {"max_staleness": 2}}, 0),
        ({"max_weight_lag": 9}, {"filters": {"max_staleness": 0}}, 2),
        ({"max_weight_lag": 1}, {"filters": {"current_version": 4}}, 0),
        ({}, {}, 0),
    ],
)
async def test_tokens_too_far_behind_are_dropped(serve, encode, settings, body, dropped) -> None:
    """Two turns, the first two versions before the second; each has two tokens."""
    ids = [*encode("hello"), END]
    engine = FakeEngine([Answer([ids]), Answer([ids])])
    async with serve(engine) as server:
        await opened(server, **settings)
        assert (await turn(server, FIRST))[0] == 200
        engine.info = at(INFO.weight_version + 2)
        assert (await turn(server, SECOND))[0] == 200
        answer = await finished(server, **body)
        assert answer["ledger"] == {
            "sampled": 4,
            "trained": 4 - dropped,
            "dropped": {"stale": dropped} if dropped else {},
        }


async def test_a_session_can_end_when_it_is_too_far_behind(serve, encode) -> None:
    ids = [*encode("hello"), END]
    engine = FakeEngine([Answer([ids]), Answer([ids])])
    async with serve(engine) as server:
        await opened(server, max_weight_lag=1, on_weight_lag="end")
        assert (await turn(server, FIRST))[0] == 200
        engine.info = at(INFO.weight_version + 1)
        assert (await turn(server, SECOND))[0] == 200
        engine.info = at(INFO.weight_version + 2)
        status, answer = await turn(server, [*SECOND, SAID, USER])
        assert status == 410
        assert (
            "tokens of weight version 3, 2 behind version 5 that is in force; it allows 1" in answer["error"]["message"]
        )
        assert (await finished(server))["ledger"] == {"sampled": 4, "trained": 2, "dropped": {"stale": 2}}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_weight_lag": -1}, "max_weight_lag"),
        ({"max_weight_lag": True}, "max_weight_lag"),
        ({"max_weight_lag": 1, "on_weight_lag": "stop"}, "on_weight_lag"),
        ({"on_weight_lag": "end"}, "on_weight_lag"),
    ],
)
async def test_what_is_no_limit_is_refused_by_name(serve, settings, field) -> None:
    async with serve(FakeEngine()) as server, server.http.post("/v1/sessions", json=settings) as response:
        assert (response.status, (await response.json())["error"]["field"]) == (400, field)
