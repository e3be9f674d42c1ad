"""A tritonserver of our own for as long as it is needed: started, ready, started again when it breaks, ended.

    async with EmbeddedTriton(TritonOptions(repository, run_dir)) as triton:
        ... triton.grpc_address ...

A free port is found by asking the kernel and closing the socket again, so another process may take it in between: then
the server says that it is in use, and the start is tried again with others. The ports stay the same from then on.

When the server or a model's process dies, the whole server is started again. Loading the model anew in the old server
would be enough for new requests, but those in flight would wait for ever (see ``engine.stubs``); the end of the server
breaks their connections, so each fails at once. The model comes back with the weights and the weight version of its
parameters, and says so in each chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.errors import LaunchFailed
from engine.installation import TritonInstallation, find_installation
from engine.server import HOST, Ports, PortTaken, ServerProcess, TritonOptions, start_server

__all__ = ["EmbeddedTriton", "TritonOptions"]

_START_ATTEMPTS = 3
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0

_log = logging.getLogger(__name__)


class EmbeddedTriton:
    """One server. Use it as an async context manager, or call ``start`` and ``stop``."""

    def __init__(self, options: TritonOptions) -> None:
        self.options = options
        self._ports: Ports | None = None
        self._server: ServerProcess | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self._known_ports().grpc}"

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self._known_ports().http}"

    @property
    def metrics_address(self) -> str:
        return f"{HOST}:{self._known_ports().metrics}"

    @property
    def pid(self) -> int:
        """The tritonserver's process id, also its process group's. Another one after it was started again.

        Raises: LaunchFailed, while no server runs.
        """
        if self._server is None:
            raise LaunchFailed("the server is not running")
        return self._server.pid

    @property
    def log_path(self) -> Path:
        return self.options.log_path

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return when its model is ready.

        Raises: LaunchFailed, with the server's own reason; nothing runs then.
        """
        installation = find_installation(self.options.tritonserver)
        self.options.run_dir.mkdir(parents=True, exist_ok=True)
        self.log_path.unlink(missing_ok=True)
        self._server = await self._start_on_some_ports(installation)
        self._keeper = asyncio.create_task(self._keep_running(installation))

    async def stop(self) -> None:
        """End the server and everything that it started. Safe to call again."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait({keeper})
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    async def _start_on_some_ports(self, installation: TritonInstallation) -> ServerProcess:
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._ports = _choose_ports(self.options)
            try:
                return await start_server(installation, self.options, self._ports)
            except PortTaken:
                if attempt == _START_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _keep_running(self, installation: TritonInstallation) -> None:
        """Until cancelled. Cancelling it in the middle of a start ends that server."""
        retry_s = _FIRST_RETRY_S
        while True:
            if self._server is not None:
                await self._server.broken()
                _log.error("tritonserver or a model's process died; starting again (log: %s)", self.log_path)
                await self._server.kill()
                self._server = None
            try:
                self._server = await start_server(installation, self.options, self._known_ports())
                retry_s = _FIRST_RETRY_S
            except LaunchFailed as error:
                _log.error("%s\nnext try in %g s", error, retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise LaunchFailed("the server was not started")
        return self._ports


def _choose_ports(options: TritonOptions) -> Ports:
    """The given ports, and free ones for the rest. The sockets are held together, so that the free ones differ.

    Raises: PortTaken, LaunchFailed.
    """
    with contextlib.ExitStack() as sockets:

        def choose(port: int) -> int:
            bound = sockets.enter_context(socket.socket())
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((HOST, port))
            except OSError as error:
                raise PortTaken(f"port {port} of {HOST}: {error.strerror}") from error
            return int(bound.getsockname()[1])

        ports = Ports(choose(options.grpc_port), choose(options.http_port), choose(options.metrics_port))
    if len({ports.grpc, ports.http, ports.metrics}) < 3:
        raise LaunchFailed(f"the ports for gRPC, HTTP and metrics must differ, not {ports}")
    return ports
