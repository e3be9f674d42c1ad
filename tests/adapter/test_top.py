"""``rollserve top``: what it works out of two scrapes, and that it draws it."""

from __future__ import annotations

import asyncio
import io

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from adapter.cli import cli
from adapter.exposition import merge, missing, render
from adapter.metrics import Metrics, Stage
from adapter.top import Between, EndpointRow, Scrape, frame, quantile
from adapter.top_view import picture, scrape, show
from engine.errors import EngineUnavailable
from tests.adapter.http.conftest import encode, qwen, serve
from tests.adapter.http.test_metrics import PooledEngine
from tests.support.engine import Answer, FakeEngine
from tests.support.ports import free_ports

__all__ = ["encode", "qwen", "serve"]

END = 151645
READY = {"status": "ready"}

ENGINES = """\
# TYPE rollserve_engine_up gauge
rollserve_engine_up{worker="0",model="m",endpoint="b:1"} 1
rollserve_engine_up{worker="1",model="m",endpoint="b:1"} 0
rollserve_engine_up{worker="0",model="m",endpoint="a:1"} 0
# TYPE rollserve_engine_breaker_open gauge
rollserve_engine_breaker_open{worker="0",model="m",endpoint="a:1"} 1
# TYPE rollserve_engine_live gauge
rollserve_engine_live{worker="0",model="m",endpoint="b:1"} 2
rollserve_engine_live{worker="1",model="m",endpoint="b:1"} 3
# TYPE rollserve_engine_weight_version gauge
rollserve_engine_weight_version{worker="0",model="m",endpoint="b:1"} 7
# TYPE rollserve_engine_held gauge
rollserve_engine_held{worker="0",model="m"} 1
"""


def scraped(at: float, *metrics: Metrics, more: bytes = b"") -> Scrape:
    text = merge([*(render([each.registry], slot) for slot, each in enumerate(metrics)), more])
    return Scrape.read(at, text.decode(), READY)


def test_rates_are_of_what_happened_between() -> None:
    workers = (Metrics(), Metrics())
    counts = [each.of_turns("anthropic", "m") for each in workers]
    counts[0].ended("stop")
    counts[0].output_tokens(1000)
    before = scraped(10.0, *workers)
    for _ in range(4):
        counts[0].ended("stop")
    counts[1].ended("upstream_failed")
    counts[0].output_tokens(300)
    counts[1].output_tokens(100)
    counts[0].prompt_tokens(50)
    counts[0].cached_tokens(40)
    for each in workers:
        each.matched("exact")
    workers[0].matched("fork:edit")
    seen = frame(before, scraped(12.0, *workers))
    assert (seen.status, seen.turns, seen.output_tokens, seen.prompt_tokens) == ("ready", 2.5, 200.0, 25.0)
    assert seen.cached_part == 0.8
    assert [(row.name, row.up, row.turns, row.tokens) for row in seen.workers] == [
        ("0", True, 2.0, 150.0),
        ("1", True, 0.5, 50.0),
    ]
    assert seen.outcomes == {"stop": 5, "upstream_failed": 1}
    assert list(seen.reasons.items()) == [("exact", 2), ("fork:edit", 1)]
    assert seen.first_token == (None, None)


def test_a_worker_that_was_started_anew_counts_from_nothing() -> None:
    old, new = Metrics(), Metrics()
    old.of_turns("anthropic", "m").output_tokens(1000)
    new.of_turns("anthropic", "m").output_tokens(10)
    assert frame(scraped(0, old), scraped(1, new)).output_tokens == 10


def test_a_worker_that_is_down_has_its_row() -> None:
    metrics = Metrics()
    seen = frame(scraped(0, metrics), scraped(1, metrics, more=missing(1)))
    assert [(row.name, row.up) for row in seen.workers] == [("0", True), ("1", False)]
    assert "does not answer" in drawn(seen)


def test_quantiles_are_of_all_workers_between_two_scrapes() -> None:
    workers = (Metrics(), Metrics())
    workers[0].of_turns("anthropic", "m").first_token(100)
    before = scraped(0, *workers)
    for number in range(100):
        workers[number % 2].of_turns("anthropic", "m").first_token(0.04)
    p50, p99 = frame(before, scraped(1, *workers)).first_token
    assert p50 == pytest.approx(0.025 + 0.025 * 0.5)
    assert p99 == pytest.approx(0.025 + 0.025 * 0.99)


@pytest.mark.parametrize(
    ("buckets", "q", "value"),
    [
        ({}, 0.5, None),
        ({"1.0": 0, "+Inf": 0}, 0.5, None),
        ({"1.0": 10, "2.0": 20, "+Inf": 20}, 0.5, 1.0),
        ({"1.0": 10, "2.0": 20, "+Inf": 20}, 0.75, 1.5),
        ({"1.0": 0, "2.0": 10, "+Inf": 10}, 0.0001, pytest.approx(1.0, abs=1e-3)),
        ({"1.0": 0, "2.0": 0, "+Inf": 5}, 0.5, 2.0),
    ],
)
def test_quantile(buckets, q, value) -> None:
    assert quantile(q, buckets) == value


def test_endpoints_are_of_all_workers() -> None:
    now = Scrape.read(1.0, ENGINES, READY)
    seen = frame(now, now)
    assert seen.on_hold
    assert seen.endpoints == (
        EndpointRow("m", "a:1", up=False, draining=False, broken=True, live=0, weight_version=None),
        EndpointRow("m", "b:1", up=True, draining=False, broken=False, live=5, weight_version=7),
    )
    assert "left alone" in drawn(seen)


def test_a_stage_is_found_by_its_label() -> None:
    metrics = Metrics()
    before = scraped(0, metrics)
    metrics.of_turns("anthropic", "m").stages[Stage.COMMIT](0.0002)
    change = Between(before, scraped(1, metrics))
    assert change.quantile(0.5, "turn_stage_seconds", stage="commit") == pytest.approx(0.000175)
    assert change.quantile(0.5, "turn_stage_seconds", stage="journal") is None


def drawn(seen) -> str:
    console = Console(file=io.StringIO(), width=120, no_color=True)
    console.print(picture("http://here", seen))
    return console.file.getvalue()


async def test_one_picture_of_a_running_server_as_plain_text(serve, encode, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    engine = PooledEngine([Answer([[*encode("hello"), END]])])
    async with serve(engine, journal=tmp_path) as server:
        async with server.http.post("/v1/messages", json={"messages": [{"role": "user", "content": "a"}]}) as response:
            assert response.status == 200
        arguments = ["top", "--once", "--interval", "0.05", "--url", server.url]
        result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert (result.exit_code, result.exception) == (0, None), result.output
    assert "\x1b" not in result.output
    for expected in (
        ": ready (engine on hold)",
        "1 idle",
        "turns ended  stop 1",
        "histories  new 1",
        "one:1",
        "draining",
    ):
        assert expected in result.output, expected


async def test_a_server_that_is_not_ready_says_why(serve) -> None:
    async with serve(FakeEngine(unavailable=EngineUnavailable("the engine is gone"))) as server:
        now = await asyncio.to_thread(scrape, server.url)
    assert frame(now, now).status == "the engine is gone"


async def test_it_is_drawn_anew_until_q_and_a_server_that_goes_is_waited_for(serve, monkeypatch) -> None:
    pictures: list[str] = []
    keys = iter(["", "", "q"])
    async with serve(FakeEngine()) as server:
        first = await asyncio.to_thread(scrape, server.url)
    scrapes = iter([first, first, click.ClickException("no server at all")])

    def next_scrape(url: str) -> Scrape:
        found = next(scrapes)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("adapter.top_view.scrape", next_scrape)
    monkeypatch.setattr("adapter.top_view._wait", lambda seconds: pictures.append(seconds) or next(keys))
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    show(console, server.url, 7.0)
    assert pictures == [7.0] * 3
    assert "no server at all" in console.file.getvalue()


def test_no_server_is_a_clear_error() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    result = CliRunner().invoke(cli, ["top", "--url", url])
    assert result.exit_code == 1
    assert f"no server at {url}" in result.output


async def test_a_key_is_asked_for_by_name(serve, monkeypatch) -> None:
    monkeypatch.delenv("ROLLSERVE_ADMIN_KEY", raising=False)
    async with serve(FakeEngine(), admin_key="an-admin-key-of-tests") as server:
        with pytest.raises(click.ClickException, match=r"401 .*ROLLSERVE_ADMIN_KEY"):
            await asyncio.to_thread(scrape, server.url)


async def test_something_else_is_told_from_a_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
        with pytest.raises(click.ClickException, match="is no rollserve"):
            await asyncio.to_thread(scrape, url)
