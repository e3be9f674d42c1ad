"""Whichever worker is asked tells the metrics of all of them, each series with its worker."""

from __future__ import annotations

from adapter.exposition import SERIES_AT_ONCE, merge, missing, pieces, render
from adapter.metrics import FEW, Few, Metrics
from tests.adapter.http.conftest import encode, qwen
from tests.adapter.workers.test_forwarding import ADMIN_KEY, END, MINE, THEIRS, body, pair
from tests.support.engine import Answer
from tests.support.metrics import read, scrape

__all__ = ["encode", "qwen"]


async def test_all_workers_are_told_of_by_any(qwen, encode) -> None:
    ids = [*encode("hello"), END]
    async with pair(qwen, Answer([ids])) as two:
        for sid in (MINE, THEIRS):
            await two.asked.http.post("/v1/sessions", json={"sid": sid})
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body()) as response:
            assert response.status == 200
        for worker in (two.asked, two.other):
            seen = await scrape(worker.http)
            assert seen.by("rollserve_worker_up", "worker") == {"0": 1, "1": 1}
            assert seen.by("rollserve_turns_total", "worker") == {"1": 1}
            assert seen.by("rollserve_output_tokens_total", "worker") == {"1": len(ids)}
            assert seen.by("rollserve_sessions", "worker") == {"0": 1, "1": 1}
            assert seen.by("rollserve_http_passed_on_total", "worker") == {"0": 2}
            counted = seen.of("rollserve_http_requests_total", route="/v1/messages")
            assert counted == seen.of("rollserve_http_requests_total", route="/v1/messages", worker="1") == 1
        assert seen.of("rollserve_http_requests_total", route="/metrics", worker="0") == 1, "not what workers ask"
        assert seen.of("rollserve_http_requests_total", route="/metrics", worker="1") == 0, "itself is not over yet"


async def test_a_worker_that_is_down_is_told_of(qwen) -> None:
    async with pair(qwen, down=True) as two:
        seen = await scrape(two.asked.http)
    assert {value for (name, _), value in seen.values.items() if name == "rollserve_worker_up"} == {0, 1}
    assert seen.by("rollserve_worker_up", "worker") == {"0": 1}


async def test_the_key_goes_along(qwen) -> None:
    async with pair(qwen, admin_key=ADMIN_KEY) as two:
        async with two.asked.http.get("/metrics") as response:
            assert response.status == 401
        seen = await scrape(two.asked.http, **{"x-api-key": ADMIN_KEY})
        assert seen.by("rollserve_worker_up", "worker") == {"0": 1, "1": 1}


def test_families_stand_together() -> None:
    metrics = [Metrics() for _ in range(2)]
    for each, count in zip(metrics, (1, 2), strict=True):
        each.of_turns("anthropic", "m").output_tokens(count)
    text = merge([*(render([each.registry], slot) for slot, each in enumerate(metrics)), missing(2)])
    seen = read(text.decode())
    assert seen.by("rollserve_output_tokens_total", "worker") == {"0": 1, "1": 2}
    assert text.count(b"# TYPE rollserve_output_tokens_total counter\n") == 1
    assert not [name for name, _ in seen.values if name.endswith("_created")]


def test_a_label_cannot_break_families_apart() -> None:
    metrics = Metrics()
    metrics.of_turns("anthropic", "a\n# HELP evil\n# HELP more").output_tokens(1)
    text = render([metrics.registry], 0)
    assert b"# HELP more" in text
    assert merge([text]) == text


def test_a_label_has_few_values() -> None:
    few = Few()
    seen = {few(f"value-{number}") for number in range(10 * FEW)}
    assert len(seen) == FEW + 1
    assert few("value-0") == "value-0"
    assert few("value-1000") == "other"


def test_a_server_that_is_given_many_names_has_few_series() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.of_turns(f"protocol-{number}", f"model-{number}").ended(f"outcome-{number}")
        metrics.answered(f"METHOD-{number}", f"/route/{number}", 200)
    seen = read(render([metrics.registry], 0).decode())
    assert len([name for name, _ in seen.values if name == "rollserve_turns_total"]) <= FEW + 1
    assert seen.of("rollserve_http_requests_total", route="other", method="other") == 1000 - FEW


def test_a_family_of_many_series_comes_in_pieces_under_one_header() -> None:
    metrics = Metrics()
    for number in range(FEW):
        metrics.of_turns("anthropic", f"model-{number}").output_tokens(number)
    parts = list(pieces([metrics.registry], 0))
    assert max(part.count(b"\n") for part in parts) <= SERIES_AT_ONCE + 2
    text = b"".join(parts)
    seen = read(text.decode())
    assert seen["rollserve_output_tokens_total"] == sum(range(FEW))
    assert merge([text]) == text
