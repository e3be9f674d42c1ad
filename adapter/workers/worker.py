"""One worker: the adapter for one slot's sessions, on the shared port and on its own. Started by the supervisor, as a process.

It stops in good order when it is told to (SIGTERM) or when its supervisor is gone: no new connections, turns in flight get their
grace time, then the journal is closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from adapter.http.server import Address
from adapter.logs import setup_logging
from adapter.ownership import Ownership
from adapter.serving import WorkerPlace, adapter_server, encoders_of, freeze_heap, load_models
from adapter.speeding_up import speeding_up
from adapter.workers.forwarding import Forwarding
from adapter.workers.peers import OtherWorkers
from adapter.workers.protocol import Assignment, message, read_message


async def work() -> None:
    """Raises: as ``serving.adapter_server``."""
    reader = await _standard_input()
    assignment = Assignment.decode(await reader.readline())
    config = assignment.config
    setup_logging(config.log_format, config.log_level, worker=assignment.slot)
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    ownership = Ownership(assignment.slot, len(assignment.urls))
    forwarding = Forwarding(ownership, assignment.urls, assignment.secret)
    place = WorkerPlace(
        ownership=ownership,
        own_url=assignment.urls[assignment.slot],
        addresses=(
            Address(config.host, assignment.ports[assignment.slot]),
            Address(config.host, config.port, shared=True),
        ),
        extend=forwarding.extend,
        peers=OtherWorkers(assignment.slot, assignment.urls, assignment.secret, config.admin_key),
    )
    models = load_models(config, lambda line: print(line, file=sys.stderr))
    with speeding_up(encoders_of(models)):
        async with adapter_server(models, assignment.triton, place=place) as server:
            freeze_heap()
            _say(message(ready=server.url))
            listening = asyncio.create_task(_answer_pings(reader, stopped))
            await stopped.wait()
            listening.cancel()


async def _answer_pings(reader: asyncio.StreamReader, stopped: asyncio.Event) -> None:
    """Answered by the event loop that serves: one that hangs does not."""
    while line := await reader.readline():
        ping = read_message(line).get("ping")
        if ping is not None:
            _say(message(pong=ping))
    stopped.set()


async def _standard_input() -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _say(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line)


def main() -> None:
    uvloop.run(work())
