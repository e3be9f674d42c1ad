"""One tritonserver process on 127.0.0.1, from its start to its end.

It runs under ``engine.guard``, which ends it and its stub processes when this process ends in whatever way. Each start
has a server id of its own, checked over gRPC, so that a stranger on the port is never taken for our server.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from engine.channel import messages, open_channel, open_stub
from engine.contract import MODEL_NAME
from engine.errors import LaunchFailed
from engine.guard import KILL_AT_ONCE
from engine.installation import TritonInstallation
from engine.server_log import failure_reason
from engine.stubs import any_ended, stub_processes

HOST = "127.0.0.1"
_ACCEPT_POLL_S = 0.02
_GUARD = Path(__file__).with_name("guard.py")
_EXIT_MARGIN_S = 2.0
"""What is left of the time to stop for the server's exit, after its own timeout for requests in flight."""


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """How to run a server. A port of 0 means any free one. ``env`` is added to this process's environment."""

    repository: Path
    """A model repository, see ``engine.repository``."""
    run_dir: Path
    """Where the log and the assembled backend folder go; it is made, and stays."""
    tritonserver: Path | None = None
    """``None``: found by ``engine.installation``."""
    grpc_port: int = 0
    http_port: int = 0
    metrics_port: int = 0
    listen: str = HOST
    """The address that it listens on; it must be reached over the loopback too, as 0.0.0.0 is."""
    env: Mapping[str, str] = field(default_factory=dict)
    explicit: tuple[str, ...] = ()
    """Models to load; these and others can then be loaded and unloaded on demand. Without any, all are loaded, for good."""
    ready_timeout_s: float = 300.0
    stop_timeout_s: float = 15.0
    """From the request to stop to SIGKILL."""

    @property
    def log_path(self) -> Path:
        return self.run_dir / "triton.log"


@dataclass(frozen=True, slots=True)
class Ports:
    grpc: int
    http: int
    metrics: int


class PortTaken(LaunchFailed):
    """Another process has one of the ports."""


class ServerProcess:
    """A server that is ready, or was. Made by ``start_server``."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int, on_demand: bool = False) -> None:
        """``on_demand``: models are unloaded and loaded again, so that the end of a model's process is no fault."""
        self._guard = process
        self._on_demand = on_demand
        self.pid = pid
        """The tritonserver's process id, which is also its process group's."""

    async def stop(self) -> None:
        """End the server in order, and all that it started. Returns when nothing of it is left."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        await asyncio.shield(self._guard.wait())

    async def broken(self) -> None:
        """Until the server or the process of one of its models ends by itself."""
        watched: set[asyncio.Task[Any]] = {asyncio.create_task(self._guard.wait())}
        if not self._on_demand:
            watched.add(asyncio.create_task(any_ended(stub_processes(self.pid))))
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in watched:
                task.cancel()

    async def kill(self) -> None:
        """End the server at once, so that every connection to it breaks. Returns when nothing of it is left."""
        if self._guard.stdin is not None and self._guard.returncode is None:
            self._guard.stdin.write(KILL_AT_ONCE)
        await self.stop()


async def start_server(installation: TritonInstallation, options: TritonOptions, ports: Ports) -> ServerProcess:
    """Start a server and return when its model is ready.

    Raises: LaunchFailed, with the server's own reason, PortTaken where that is it; nothing runs then.
    """
    server_id = f"rollserve-{secrets.token_hex(8)}"
    command = _command(installation, options, ports, server_id)
    with options.log_path.open("ab") as log:
        log_start = log.tell()
        guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_GUARD), str(options.stop_timeout_s), server_id, *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=installation.environment({**os.environ, **options.env}),
            start_new_session=True,  # a Ctrl-C in the terminal is for us; we then end the server in order
        )
    server = ServerProcess(guard, pid=0, on_demand=bool(options.explicit))
    try:
        assert guard.stdout is not None
        server.pid = int(await guard.stdout.readline() or 0)
        trouble = await _until_ready(guard, ports, server_id, options.ready_timeout_s)
        if trouble:
            raise _start_failure(trouble, options.log_path, log_start)
    except BaseException:
        await server.stop()
        raise
    return server


async def _until_ready(guard: asyncio.subprocess.Process, ports: Ports, server_id: str, timeout_s: float) -> str:
    """Until the model is ready, or cannot be; empty, or the reason."""
    loaded = asyncio.create_task(_until_loaded(ports, server_id))
    ended = asyncio.create_task(guard.wait())
    try:
        await asyncio.wait({loaded, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return f"tritonserver ended with status {ended.result()}"
        return loaded.result() if loaded.done() else f"not ready after {timeout_s:g} s"
    finally:
        loaded.cancel()
        ended.cancel()
        await asyncio.wait({loaded, ended})


async def _until_loaded(ports: Ports, server_id: str) -> str:
    async with open_channel(f"{HOST}:{ports.grpc}") as channel:
        try:
            trouble = await _trouble(open_stub(channel), server_id)
        except grpc.aio.AioRpcError as error:
            return f"gRPC {error.code().name}: {error.details()}"
    if not trouble:
        await _until_accepting(ports.http)
        await _until_accepting(ports.metrics)
    return trouble


async def _until_accepting(port: int) -> None:
    """The server opens its HTTP and metrics ports a moment after the gRPC port."""
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except ConnectionRefusedError:
            await asyncio.sleep(_ACCEPT_POLL_S)
            continue
        writer.close()
        return


async def _trouble(stub: service_pb2_grpc.GRPCInferenceServiceStub, server_id: str) -> str:
    """The server answers only when it has tried to load its models."""
    metadata = await stub.ServerMetadata(messages.ServerMetadataRequest(), wait_for_ready=True)
    if metadata.name != server_id:
        return f"another server, named {metadata.name}, has its gRPC port, which is already in use"
    ready = await stub.ModelReady(messages.ModelReadyRequest(name=MODEL_NAME))
    if ready.ready:
        return ""
    index = await stub.RepositoryIndex(messages.RepositoryIndexRequest())
    reasons = [f"model {model.name} {model.state}: {model.reason}" for model in index.models if model.state != "READY"]
    return "; ".join(reasons) or f"the model repository holds no model {MODEL_NAME}"


def _start_failure(trouble: str, log_path: Path, log_start: int) -> LaunchFailed:
    reason = failure_reason(log_path, log_start)
    kind = PortTaken if "already in use" in trouble + reason else LaunchFailed
    return kind(f"tritonserver did not become ready: {trouble}\n{reason}\nLog: {log_path}")


def _command(installation: TritonInstallation, options: TritonOptions, ports: Ports, server_id: str) -> list[str]:
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
        *(f"--{kind}-address={options.listen}" for kind in ("grpc", "http", "metrics")),
        f"--grpc-port={ports.grpc}",
        f"--http-port={ports.http}",
        f"--metrics-port={ports.metrics}",
    ]
    if options.explicit:
        command += ["--model-control-mode=explicit", *(f"--load-model={model}" for model in options.explicit)]
    return [*command, f"--backend-directory={backends}"] if backends is not None else command
