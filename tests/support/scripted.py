"""The adapter in front of a real tritonserver that runs the scripted model."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from adapter.config import Config
from adapter.http.state import ServerState
from adapter.ids import ReplyIds
from adapter.journaling import prepared
from adapter.serving import adapter_server, load_models
from engine.types import Dialect
from tests.support.assets import tokenizer_dir
from tests.support.cpp_stand_in import running_cpp_stand_in
from tests.support.triton import running_triton

DIALECT = "TEST_DIALECT"
"""The environment variable that says which dialect the scripted model speaks; ``cumulative`` is TensorRT-LLM's C++ model's."""


def dialects() -> list[Dialect]:
    """What a test over both is to run over: both, unless the environment names one."""
    return [Dialect(os.environ[DIALECT])] if os.environ.get(DIALECT) else list(Dialect)


@dataclass(frozen=True)
class ScriptedServer:
    """``http`` is a client session whose base is the server's URL."""

    url: str
    http: aiohttp.ClientSession
    state: ServerState
    engine_log: Path

    def logged(self) -> list[dict[str, Any]]:
        """What the model says that it sampled, the probe's trial left out; one entry a request, in order of their ends."""
        entries = [json.loads(line) for line in self.engine_log.read_text().splitlines()]
        return [entry for entry in entries if entry["session"] != "rollserve-probe"]


@asynccontextmanager
async def scripted_server(
    run_dir: Path,
    script: dict[str, Any],
    *,
    tokenizer_name: str = "qwen2_5",
    ids: ReplyIds | None = None,
    coalesce_ms: str = "20",
    dialect: Dialect | None = None,
    **settings: Any,
) -> AsyncIterator[ScriptedServer]:
    """``settings`` are fields of ``Config``; without a ``dialect`` it is the environment's, or ours."""
    tokenizer = tokenizer_dir(tokenizer_name)
    cumulative = (dialect or dialects()[0]) is Dialect.CUMULATIVE
    script_file = run_dir / "script.json"
    script_file.write_text(json.dumps(with_ends(script) if cumulative else script))
    engine_log = run_dir / "engine.jsonl"
    parameters = {
        "script": str(script_file),
        "tokenizer_dir": str(tokenizer),
        "engine_log": str(engine_log),
        "coalesce_ms": coalesce_ms,
    }
    config = Config(port=0, tokenizer=tokenizer, **{"journal": run_dir / "journal", **settings})
    running = (
        running_cpp_stand_in(run_dir, parameters) if cumulative else running_triton("scripted", run_dir, parameters)
    )
    async with running as triton:
        with prepared(config):
            async with (
                adapter_server(load_models(config, print), triton.grpc_address, ids) as server,
                aiohttp.ClientSession(server.url) as http,
            ):
                yield ScriptedServer(server.url, http, server.state, engine_log)


def with_ends(script: dict[str, Any]) -> dict[str, Any]:
    """The script for a model that cannot say why a reply ended: one that runs out ends with an end token."""

    def ended(reply: dict[str, Any]) -> dict[str, Any]:
        return reply if "log_probs" in reply else {"end": True, **reply}

    default = {"default": ended(script["default"])} if "default" in script else {}
    return {**script, "rules": [ended(rule) for rule in script.get("rules", [])], **default}
