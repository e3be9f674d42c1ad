"""Several workers as real processes in front of a real Triton: killed, replaced, and stopped in good order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapter.ownership import Ownership
from tests.support.assets import tokenizer_dir
from tests.support.metrics import scrape
from tests.support.triton import running_triton

COMMAND = Path(sys.executable).with_name("rollserve")
SCRIPT = {"default": {"text": "Hello there.", "end": True}}
SIDS = [Ownership(slot, 2).new_name() for slot in (0, 1)]
"""One session for each worker."""
RETRIES = 2000
"""A worker takes two seconds to start on a quiet machine, and ten times that on a busy one."""


@dataclass
class Server:
    """A running ``rollserve serve --workers 2``."""

    url: str
    http: aiohttp.ClientSession
    process: asyncio.subprocess.Process
    log: list[dict[str, object]]

    def workers(self) -> dict[int, int]:
        """Process ids by slot, the newest of each."""
        return {line["slot"]: line["pid"] for line in self.log if line["event"] == "worker_ready"}  # type: ignore[misc]

    async def ask(self, sid: str, messages: list[dict[str, str]]) -> dict[str, object]:
        """A turn."""
        body = {"messages": messages, "max_tokens": 16}
        answer, headers = await self.tried("POST", f"/s/{sid}/v1/messages", body)
        return {**answer, "match": headers["x-rollserve-match"]}

    async def tried(self, method: str, path: str, body: object = None) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Answer and headers; tried again as agents do while a worker is being replaced."""
        for _ in range(RETRIES):
            with contextlib.suppress(aiohttp.ClientError):
                async with self.http.request(method, path, json=body) as response:
                    if response.status == 200:
                        return await response.json(), response.headers
                    assert response.status == 503, await response.text()
            await asyncio.sleep(0.1)
        raise AssertionError("no worker came back")


@pytest.fixture(scope="module")
async def triton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("triton")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    parameters = {"script": str(script), "tokenizer_dir": str(tokenizer_dir("qwen2_5"))}
    async with running_triton("scripted", folder, parameters) as server:
        yield server.grpc_address


@asynccontextmanager
async def running(triton: str, journal: Path, workers: int = 2) -> AsyncIterator[Server]:
    arguments = ["--triton", triton, "--tokenizer", tokenizer_dir("qwen2_5"), "--port", "0", "--log-format", "json"]
    process = await asyncio.create_subprocess_exec(
        COMMAND, "serve", *map(str, arguments), "--workers", str(workers), "--journal", str(journal),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 20,
    )  # fmt: skip
    log: list[dict[str, object]] = []
    reading = asyncio.create_task(_read_log(process, log))
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        url = line.split(" listens on ")[1].split()[0]
        async with aiohttp.ClientSession(url) as http:
            yield Server(url, http, process, log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 60)
        await reading


async def _read_log(process: asyncio.subprocess.Process, log: list[dict[str, object]]) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        with contextlib.suppress(ValueError):
            log.append(json.loads(line))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


SAID = {"role": "assistant", "content": "Hello there."}


async def opened(server: Server) -> list[str]:
    """Both sessions; gives their own URLs."""
    urls = []
    for sid in SIDS:
        async with server.http.post("/v1/sessions", json={"sid": sid}) as response:
            urls.append((await response.json())["base_url"])
    return urls


async def test_a_worker_that_is_killed_is_replaced_and_goes_on(triton: str, tmp_path: Path) -> None:
    async with running(triton, tmp_path) as server:
        assert len(set(await opened(server))) == 2
        for sid in SIDS:
            await server.ask(sid, [user("a")])
        assert (await scrape(server.http)).by("rollserve_turns_total", "worker") == {"0": 1, "1": 1}
        killed = server.workers()
        os.kill(killed[0], signal.SIGKILL)
        for sid in SIDS:
            reply = await server.ask(sid, [user("a"), SAID, user("b")])
            assert reply["match"] == "exact"
        assert server.workers()[1] == killed[1]
        assert server.workers()[0] != killed[0]
        metrics = await scrape(server.http)
        assert metrics.by("rollserve_turns_total", "worker") == {"0": 1, "1": 2}, "the new one counts from nothing"
        assert metrics.by("rollserve_session_events_total", "event") == {"opened": 1, "loaded": 1}
        for sid in SIDS:
            async with server.http.post(f"/v1/sessions/{sid}/finish", json={}) as response:
                answer = await response.json()
            assert (answer["turn_count"], len(answer["samples"])) == (2, 1)


async def test_a_client_goes_on_from_a_response_of_a_worker_that_was_killed(triton: str, tmp_path: Path) -> None:
    """It names no session: the response's id does."""
    async with running(triton, tmp_path) as server:
        stored = {}
        for sid in SIDS:
            body = {"input": "a", "max_output_tokens": 16, "metadata": {"session_id": sid}}
            stored[sid], _ = await server.tried("POST", "/v1/responses", body)
        for pid in server.workers().values():
            os.kill(pid, signal.SIGKILL)
        for sid, first in stored.items():
            again, _ = await server.tried("GET", f"/v1/responses/{first['id']}")
            assert again == first
            body = {"input": "b", "max_output_tokens": 16, "previous_response_id": first["id"]}
            _, headers = await server.tried("POST", "/v1/responses", body)
            assert (headers["x-rollserve-session"], headers["x-rollserve-match"]) == (sid, "exact")
            assert headers["x-rollserve-turn"] == "2"
            answer, _ = await server.tried("POST", f"/v1/sessions/{sid}/finish", {})
            assert (answer["turn_count"], len(answer["samples"])) == (2, 1)


async def test_a_worker_that_hangs_is_replaced(triton: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSERVE_WORKER_HANG_S", "10")
    async with running(triton, tmp_path) as server:
        await opened(server)
        hung = server.workers()[1]
        os.kill(hung, signal.SIGSTOP)
        await server.ask(SIDS[1], [user("a")])
        assert server.workers()[1] != hung


async def test_workers_end_with_their_supervisor_and_the_next_finds_everything(triton: str, tmp_path: Path) -> None:
    """Other workers than before, too: one where there were two."""
    async with running(triton, tmp_path) as server:
        await opened(server)
        for sid in SIDS:
            await server.ask(sid, [user("a")])
        os.kill(server.process.pid, signal.SIGKILL)
        await server.process.wait()
    async with running(triton, tmp_path, workers=3) as server:
        for sid in SIDS:
            assert (await server.ask(sid, [user("a"), SAID, user("b")]))["match"] == "exact"


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_sigterm_ends_all_in_good_order(triton: str, tmp_path: Path) -> None:
    async with running(triton, tmp_path) as server:
        await opened(server)
        pids = server.workers().values()
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
        assert not any(_is_running(pid) for pid in pids)
        assert not [line for line in server.log if line["event"] == "worker_killed"]
