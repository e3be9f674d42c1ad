"""A real tritonserver for tests, with a model of the project or of the tests.

    async with running_triton("scripted", tmp_path, {"script": ...}) as triton:
        ... triton.grpc_address ...

The first start on a machine takes about a second, further ones less; share a server between tests where they do not
break it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.launch import EmbeddedTriton, TritonOptions
from engine.repository import MODELS, render_repository

STOP_TIMEOUT_S = 4.0
"""Short, so that a server with a request that never ends does not hold up a test run."""


@asynccontextmanager
async def running_triton(
    model: str, run_dir: Path, parameters: Mapping[str, str], *, models: Path = MODELS, **options: Any
) -> AsyncIterator[EmbeddedTriton]:
    """A server that is ready; its files and its log lie in ``run_dir``. ``options`` are more of ``TritonOptions``."""
    repository = render_repository(model, run_dir / "repository", parameters, models=models)
    settings = {"stop_timeout_s": STOP_TIMEOUT_S, **options}
    async with EmbeddedTriton(TritonOptions(repository, run_dir, **settings)) as triton:
        yield triton
