"""Start a tritonserver of our own on 127.0.0.1, wait until its model is ready, and end it so that nothing is left
behind.

    async with EmbeddedTriton(TritonOptions(repository, run_dir)) as triton:
        ... triton.grpc_address ...

The server runs under ``engine.guard``, which ends it and its stub processes when this process ends in whatever way. A
free port is found by asking the kernel and closing the socket again, so another process may take it in between: then
the server says that it is in use and the start is tried again with others. Each start has a server id of its own,
checked over gRPC, so that a stranger on the port is never taken for our server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.channel import messages, open_channel, open_stub
from engine.contract import MODEL_NAME
from engine.errors import LaunchFailed
from engine.installation import TritonInstallation, find_installation
from engine.server_log import failure_reason

_HOST = "127.0.0.1"
_GUARD = Path(__file__).with_name("guard.py")
_START_ATTEMPTS = 3
_EXIT_MARGIN_S = 2.0
"""What is left of the grace time for the server's exit after its own timeout for requests in flight."""


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """How to run the server. A port of 0 means any free one. ``env`` is added to this process's environment."""

    repository: Path
    """A model repository, see ``engine.repository``."""
    run_dir: Path
    """Where the log and the assembled backend folder go; it is made, and stays."""
    tritonserver: Path | None = None
    """``None``: found by ``engine.installation``."""
    grpc_port: int = 0
    http_port: int = 0
    metrics_port: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 300.0
    stop_timeout_s: float = 15.0
    """From the request to stop to SIGKILL."""


@dataclass(frozen=True, slots=True)
class _Ports:
    grpc: int
    http: int
    metrics: int


class EmbeddedTriton:
    """One server. Use it as an async context manager, or call ``start`` and ``stop``."""

    def __init__(self, options: TritonOptions) -> None:
        self.options = options
        self._process: asyncio.subprocess.Process | None = None
        self._ports: _Ports | None = None
        self._pid = 0

    @property
    def grpc_address(self) -> str:
        return f"{_HOST}:{self._started_ports().grpc}"

    @property
    def http_address(self) -> str:
        return f"{_HOST}:{self._started_ports().http}"

    @property
    def metrics_address(self) -> str:
        return f"{_HOST}:{self._started_ports().metrics}"

    @property
    def pid(self) -> int:
        """The tritonserver's process id, which is also its process group's."""
        self._started_ports()
        return self._pid

    @property
    def log_path(self) -> Path:
        return self.options.run_dir / "triton.log"

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
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                await self._start_once(installation)
                return
            except _PortTaken as error:
                if attempt == _START_ATTEMPTS or self._all_ports_given():
                    raise LaunchFailed(str(error)) from error

    async def stop(self) -> None:
        """End the server and everything that it started. Safe to call again."""
        process, self._process, self._ports = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        await asyncio.shield(process.wait())

    async def wait(self) -> int:
        """Until the server ends by itself; its exit status (128 + n for signal n)."""
        if self._process is None:
            raise LaunchFailed("the server was not started")
        return await self._process.wait()

    async def _start_once(self, installation: TritonInstallation) -> None:
        server_id = f"rollserve-{secrets.token_hex(8)}"
        options = self.options
        ports = _choose_ports(options)
        command = _command(installation, options, ports, server_id)
        grace = str(options.stop_timeout_s)
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARD), grace, server_id, *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=installation.environment({**os.environ, **options.env}),
                start_new_session=True,  # a Ctrl-C in the terminal is for us; we then end the server in order
            )
        self._ports = ports
        try:
            await self._become_ready(self._process, server_id)
        except BaseException:
            await self.stop()
            raise

    async def _become_ready(self, process: asyncio.subprocess.Process, server_id: str) -> None:
        assert process.stdout is not None
        self._pid = int(await process.stdout.readline() or 0)
        ready = asyncio.ensure_future(_wait_until_loaded(self.grpc_address, server_id))
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait(
                {ready, ended}, timeout=self.options.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                raise self._start_failure(f"tritonserver ended with status {ended.result()}")
            if not ready.done():
                raise self._start_failure(f"not ready after {self.options.ready_timeout_s:g} s")
            reason = ready.result()
            if reason:
                raise self._start_failure(reason)
        finally:
            for task in (ready, ended):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    def _start_failure(self, what: str) -> Exception:
        reason = failure_reason(self.log_path)
        message = f"tritonserver did not become ready: {what}\n{reason}\nLog: {self.log_path}"
        return _PortTaken(message) if "already in use" in reason else LaunchFailed(message)

    def _all_ports_given(self) -> bool:
        options = self.options
        return all((options.grpc_port, options.http_port, options.metrics_port))

    def _started_ports(self) -> _Ports:
        if self._ports is None:
            raise LaunchFailed("the server is not running")
        return self._ports


class _PortTaken(Exception):
    """Another process has one of the ports."""


async def _wait_until_loaded(address: str, server_id: str) -> str:
    """Until the server has tried to load its models. Empty if ours is ready, else the server's reason."""
    async with open_channel(address) as channel:
        stub = open_stub(channel)
        metadata = await stub.ServerMetadata(messages.ServerMetadataRequest(), wait_for_ready=True)
        if metadata.name != server_id:
            return f"another server answers on {address}"
        ready = await stub.ModelReady(messages.ModelReadyRequest(name=MODEL_NAME))
        if ready.ready:
            return ""
        index = await stub.RepositoryIndex(messages.RepositoryIndexRequest())
        reasons = [
            f"model {model.name} {model.state}: {model.reason}" for model in index.models if model.state != "READY"
        ]
        return "; ".join(reasons) or f"the model repository holds no model {MODEL_NAME}"


def _command(installation: TritonInstallation, options: TritonOptions, ports: _Ports, server_id: str) -> list[str]:
    backends = installation.make_backend_directory(options.run_dir / "backends")
    exit_timeout_s = max(1, int(options.stop_timeout_s - _EXIT_MARGIN_S))
    command = [
        str(installation.binary),
        f"--id={server_id}",
        f"--model-repository={options.repository}",
        "--disable-auto-complete-config",  # ours is complete; completing it would start each model twice
        "--exit-on-error=false",  # stay, so that the repository index can say why a model did not load
        f"--exit-timeout-secs={exit_timeout_s}",
        f"--backend-config=python,shm-region-prefix-name={server_id}",
        *(f"--{kind}-address={_HOST}" for kind in ("grpc", "http", "metrics")),
        f"--grpc-port={ports.grpc}",
        f"--http-port={ports.http}",
        f"--metrics-port={ports.metrics}",
    ]
    return [*command, f"--backend-directory={backends}"] if backends is not None else command


def _choose_ports(options: TritonOptions) -> _Ports:
    """The given ports, and free ones for the rest. The sockets are held together, so that the free ones differ."""
    with contextlib.ExitStack() as sockets:

        def choose(port: int) -> int:
            if port:
                return port
            free = sockets.enter_context(socket.socket())
            free.bind((_HOST, 0))
            return int(free.getsockname()[1])

        return _Ports(choose(options.grpc_port), choose(options.http_port), choose(options.metrics_port))
