"""The embedded tritonserver: ready or a reason, started again when it breaks, nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.client import TritonClient
from engine.errors import EngineFailed, EngineUnavailable, LaunchFailed
from engine.launch import EmbeddedTriton, TritonOptions
from engine.repository import render_repository
from engine.stubs import stub_processes
from tests.engine.misbehaving import INFO, MISBEHAVING, MODELS, collect, request, sampled_ids
from tests.support.processes import LIMIT_S, assert_gone, running
from tests.support.triton import STOP_TIMEOUT_S, running_triton
from tests.support.wait import until

LIMITS = {"max_seq_len": "4096", "vocab_size": "1000"}
PROJECT = Path(__file__).parents[2]


@pytest.fixture
async def triton(tmp_path: Path) -> AsyncIterator[EmbeddedTriton]:
    """A server of the test's own, to be broken."""
    async with running_triton(MISBEHAVING, tmp_path, LIMITS, models=MODELS) as triton:
        yield triton


def options(tmp_path: Path, **changes: object) -> TritonOptions:
    repository = render_repository(MISBEHAVING, tmp_path / "repository", LIMITS, models=MODELS)
    settings: dict[str, object] = {"stop_timeout_s": STOP_TIMEOUT_S, **changes}
    return TritonOptions(repository, tmp_path, **settings)  # type: ignore[arg-type]


def processes_of(triton: EmbeddedTriton) -> list[int]:
    """The server and its models' processes; the list is not empty by accident."""
    stubs = stub_processes(triton.pid)
    assert len(stubs) == 1
    return [triton.pid, *stubs]


def is_running(triton: EmbeddedTriton) -> bool:
    try:
        return triton.pid > 0
    except LaunchFailed:
        return False


def proc_file(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def shared_memory_of(pids: list[int]) -> list[Path]:
    """The regions that the processes have mapped; the list is not empty by accident."""
    lines = [line for pid in pids for line in proc_file(pid, "maps").splitlines()]
    regions = sorted({Path(line.split()[-1]) for line in lines if "/dev/shm/rollserve-" in line})
    assert regions
    return regions


async def test_a_server_is_ready_and_leaves_nothing(tmp_path: Path) -> None:
    async with running_triton(MISBEHAVING, tmp_path, LIMITS, models=MODELS) as triton:
        pids = processes_of(triton)
        regions = shared_memory_of(pids)
        async with TritonClient(triton.grpc_address, INFO) as client:
            assert await sampled_ids(client) == [0, 1, 2, 3]
    assert_gone(pids)
    assert not any(region.exists() for region in regions)
    assert b"Started GRPCInferenceService" in (tmp_path / "triton.log").read_bytes()


async def test_a_request_in_flight_does_not_keep_the_server(tmp_path: Path) -> None:
    async with running_triton(MISBEHAVING, tmp_path, LIMITS, models=MODELS) as triton:
        pids = processes_of(triton)
        async with TritonClient(triton.grpc_address, INFO) as client:
            stalled = client.generate(request("stall"))
            assert len((await anext(stalled)).ids) == 1
            await triton.stop()
            with pytest.raises(EngineFailed):
                await collect_rest(stalled)
    assert_gone(pids)


async def until_ready(client: TritonClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(EngineUnavailable):
                return await client.check_ready()


async def collect_rest(chunks: AsyncIterator[object]) -> list[object]:
    return [chunk async for chunk in chunks]


async def test_it_listens_on_the_loopback_address_only(triton: EmbeddedTriton) -> None:
    addresses = (triton.grpc_address, triton.http_address, triton.metrics_address)
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    assert len(ports) == 3
    found = {port: address for port, address in listening_sockets(triton.pid) if port in ports}
    assert found.keys() == ports
    assert set(found.values()) <= {LOOPBACK, LOOPBACK_AS_IPV6}


LOOPBACK = "0100007F"
LOOPBACK_AS_IPV6 = "0000000000000000FFFF00000100007F"


def listening_sockets(pid: int) -> Iterator[tuple[int, str]]:
    """Port and address of each listening socket of the process's network namespace; see proc(5) for the format."""
    for table in ("net/tcp", "net/tcp6"):
        for line in proc_file(pid, table).splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A":
                address, port = local.split(":")
                yield int(port, 16), address


async def test_given_ports_and_environment_are_used(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with EmbeddedTriton(options(tmp_path, grpc_port=port, env={"ROLLSERVE_TEST_MARK": "1"})) as triton:
        assert triton.grpc_address == f"127.0.0.1:{port}"
        assert "ROLLSERVE_TEST_MARK=1" in proc_file(triton.pid, "environ").split("\0")


async def test_a_model_that_does_not_load_gives_its_reason(tmp_path: Path) -> None:
    parameters = {**LIMITS, "fail_to_load": "the weights are made of cheese"}
    repository = render_repository(MISBEHAVING, tmp_path / "repository", parameters, models=MODELS)
    with pytest.raises(LaunchFailed, match="the weights are made of cheese"):
        await EmbeddedTriton(TritonOptions(repository, tmp_path)).start()


async def test_an_empty_repository_gives_a_reason(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    with pytest.raises(LaunchFailed, match="tensorrt_llm"):
        await EmbeddedTriton(TritonOptions(tmp_path / "repository", tmp_path / "run")).start()


async def test_a_server_that_ends_at_once_gives_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "tritonserver"
    script.write_text("#!/bin/sh\necho 'I1130 starting'\necho 'error: no such license' >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(LaunchFailed, match=r"ended with status 3\nerror: no such license"):
        await EmbeddedTriton(options(tmp_path, tritonserver=script)).start()


async def test_a_server_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "tritonserver"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/PID\nexec sleep 300\n")
    script.chmod(0o755)
    with pytest.raises(LaunchFailed, match="not ready after 1 s"):
        await EmbeddedTriton(options(tmp_path, tritonserver=script, ready_timeout_s=1.0)).start()
    assert_gone([int((tmp_path / "PID").read_text())])


@pytest.mark.parametrize("kind", ["grpc_port", "http_port", "metrics_port"])
async def test_a_given_port_that_is_taken_is_an_error(kind: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LaunchFailed, match="in use"):
            await EmbeddedTriton(options(tmp_path, **{kind: taken.getsockname()[1]})).start()


async def test_a_free_port_that_somebody_takes_meanwhile_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import launch
    from engine.server import Ports

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        choose = launch._choose_ports
        answers = [taken.getsockname()[1]]

        def choose_a_taken_one_first(wanted: TritonOptions) -> Ports:
            ports = choose(wanted)
            return Ports(answers.pop(), ports.http, ports.metrics) if answers else ports

        monkeypatch.setattr(launch, "_choose_ports", choose_a_taken_one_first)
        async with EmbeddedTriton(options(tmp_path)) as triton:
            assert triton.grpc_address != f"127.0.0.1:{taken.getsockname()[1]}"


async def test_the_same_port_twice_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(LaunchFailed, match="must differ"):
        await EmbeddedTriton(options(tmp_path, grpc_port=port, http_port=port)).start()


@pytest.mark.parametrize("victim", ["model", "server"])
async def test_what_dies_is_started_again_and_nobody_waits_for_ever(victim: str, triton: EmbeddedTriton) -> None:
    old = processes_of(triton)
    async with TritonClient(triton.grpc_address, INFO) as client:
        stalled = client.generate(request("stall"))
        assert len((await anext(stalled)).ids) == 1
        if victim == "model":
            with pytest.raises(EngineFailed):
                await collect(client, request("crash_later"))
        else:
            os.kill(triton.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed):
            await collect_rest(stalled)
        await until_ready(client)
        assert await sampled_ids(client) == [0, 1, 2, 3]
    assert_gone(old)
    await until(lambda: is_running(triton))
    assert not set(processes_of(triton)) & set(old)


async def test_stopping_while_it_is_started_again_leaves_nothing(triton: EmbeddedTriton) -> None:
    old = processes_of(triton)
    os.kill(triton.pid, signal.SIGKILL)
    await until(lambda: not running(old[:1]))
    await triton.stop()
    assert_gone(old)
    with pytest.raises(LaunchFailed, match="not running"):
        _ = triton.pid


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "tritonserver"
    script.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/PID.new\nmv {tmp_path}/PID.new {tmp_path}/PID\nexec sleep 300\n"
    )
    script.chmod(0o755)
    start = asyncio.create_task(EmbeddedTriton(options(tmp_path, tritonserver=script)).start())
    await until((tmp_path / "PID").exists)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert_gone([int((tmp_path / "PID").read_text())])


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL: the owner has no chance to clean up."""
    repository = render_repository(MISBEHAVING, tmp_path / "repository", LIMITS, models=MODELS)
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from engine.launch import EmbeddedTriton, TritonOptions\n"
        "from engine.stubs import stub_processes\n"
        "async def main():\n"
        f"    triton = EmbeddedTriton(TritonOptions(Path({str(repository)!r}), Path({str(tmp_path)!r})))\n"
        "    await triton.start()\n"
        "    print(triton.pid, *stub_processes(triton.pid), flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=PROJECT) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) == 2
    assert_gone(pids)
