"""The adapter, listening on a free port of 127.0.0.1, in front of any ``Engine``."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

import aiohttp

from adapter.config import Config
from adapter.http.state import ServerState
from adapter.ids import ReplyIds
from adapter.journaling import prepared, recording
from adapter.render.prompt import Renderer
from adapter.served import Loaded
from adapter.serving import WorkerPlace, models_server
from adapter.types import Durability
from engine.types import Engine


@dataclass(frozen=True)
class TestServer:
    """A running adapter. ``http`` is a client session whose base is the server's URL."""

    __test__ = False

    url: str
    http: aiohttp.ClientSession
    state: ServerState


@asynccontextmanager
async def serving(
    engine: Engine,
    renderer: Renderer,
    config: Config | None = None,
    ids: ReplyIds | None = None,
    place: WorkerPlace | None = None,
    beside: Sequence[Loaded] = (),
) -> AsyncIterator[TestServer]:
    """With a journal only where ``config`` names a folder for it. ``beside`` are served beside the model of ``config``."""
    config = dataclasses.replace(config or Config(), port=0)
    place = place or WorkerPlace()
    if config.journal is None:
        config = dataclasses.replace(config, durability=Durability.NONE)
    config = dataclasses.replace(config, workers=place.ownership.workers)
    with prepared(config) if place.ownership.slot == 0 else nullcontext():
        async with _recorded([Loaded(config, engine, renderer), *beside], ids, place) as server:
            yield server


@asynccontextmanager
async def _recorded(loaded: Sequence[Loaded], ids: ReplyIds | None, place: WorkerPlace) -> AsyncIterator[TestServer]:
    async with (
        recording(loaded[0].config, place.ownership.slot) as recorded,
        models_server(loaded, recorded, ids, place) as server,
        aiohttp.ClientSession(server.url) as http,
    ):
        yield TestServer(server.url, http, server.state)
