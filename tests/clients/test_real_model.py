"""A real model: one turn each of the CLIs that can make do with a small prompt; what was recorded is then scored anew.

The demo model is too small to do a task, and its context of 8192 tokens too small for any CLI's usual prompt.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio

from adapter.config import Config
from adapter.serving import everything
from adapter.storage.export import write_export
from engine.assets import demo_model_dir
from tests.clients.cli import Cli, Place, start
from tests.clients.clis import CLAUDE_BARE, CODEX_SMALL, MODEL

MAX_DIFFERENCE = 1e-3
PINNED = {"temperature": 0.7, "seed": 1, "max_tokens": 256}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small_model() -> AsyncIterator[aiohttp.ClientSession]:
    """The demo model in a real Triton, and the adapter before it."""
    config = Config(port=0, served_model_name=MODEL, model_dir=demo_model_dir())
    async with everything(config, print) as running, aiohttp.ClientSession(running.url) as http:
        yield http


async def test_turns_are_recorded_as_the_model_scores_them(small_model: aiohttp.ClientSession, tmp_path: Path) -> None:
    exports = [await played(small_model, cli, tmp_path / cli.name) for cli in (CLAUDE_BARE, CODEX_SMALL)]
    samples = tmp_path / "samples.jsonl"
    write_export({"samples": [sample for export in exports for sample in export["samples"]]}, samples)
    report = await verified(samples)
    assert report["trained_tokens"] == sum(export["ledger"]["trained"] for export in exports)
    assert report["failures"] == []
    assert 0 < report["max_difference"] <= MAX_DIFFERENCE


async def played(server: aiohttp.ClientSession, cli: Cli, root: Path) -> dict[str, Any]:
    """A session in which the CLI was asked one question: its export."""
    session = await post(server, "/v1/sessions", {"sid": cli.name, "sampling": {"pinned": PINNED}})
    ended = await start(cli, Place(root), session["base_url"], "What is the capital of France?")
    assert ended.status == 0, ended
    assert ended.said.strip(), ended
    export = await post(server, f"/v1/sessions/{cli.name}/finish", {"reward": 1.0})
    assert export["ledger"]["trained"] == export["ledger"]["sampled"] > 0
    return export


async def post(server: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with server.post(path, json=body) as response:
        assert response.status < 300, await response.text()
        return await response.json()


async def verified(samples: Path) -> dict[str, Any]:
    """What ``rollserve verify`` finds, in a process of its own."""
    command = [sys.executable, "-m", "engine.verify", str(samples), "--model", str(demo_model_dir()), "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return json.loads(output)
