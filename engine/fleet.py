"""Several tritonservers of our own on one host, one for each replica, each with its share of the GPUs.

    replica 0    GPUs 0 .. w-1      ports base, base + 1, base + 2 (gRPC, HTTP, metrics)
    replica 1    GPUs w .. 2w-1     ports base + 3, ...

w is what one replica spans: tensor times pipeline parallel. A replica sees only its own GPUs (``CUDA_VISIBLE_DEVICES``). Each is
an ``EmbeddedTriton``: started again when it breaks, gone when we are. TensorRT-LLM's C++ model over several GPUs starts its other
ranks itself (orchestrator mode, ``TRTLLM_ORCHESTRATOR``, one node), and is loaded on demand, for that is how it gets new weights.
Nothing of this was tried on a GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.contract import MODEL_NAME
from engine.errors import LaunchFailed
from engine.launch import EmbeddedTriton, TritonOptions

PORTS_EACH = 3
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """``render`` writes the repository of one replica into a folder and gives it. ``base_port`` 0: any free ports."""

    render: Callable[[Path], Path]
    run_dir: Path
    replicas: int = 1
    gpus_each: int = 0
    """0: the replicas use no GPU, or share what there is."""
    gpus: tuple[str, ...] = ()
    """Names or numbers, in order; empty: counted from 0."""
    base_port: int = 0
    listen: str = "127.0.0.1"
    is_cpp: bool = False
    """The model is TensorRT-LLM's C++ one."""

    def options(self, replica: int) -> TritonOptions:
        """Raises: LaunchFailed, if there are not enough GPUs or ports; RepositoryError."""
        folder = self.run_dir / f"replica-{replica}"
        folder.mkdir(parents=True, exist_ok=True)
        ports = [self.base_port and self.base_port + PORTS_EACH * replica + place for place in range(PORTS_EACH)]
        if ports[-1] > LAST_PORT:
            raise LaunchFailed(
                f"replica {replica} would need the ports up to {ports[-1]}; {LAST_PORT} is the last there is"
            )
        env = {"HF_HUB_OFFLINE": "1"}
        if self.gpus_each:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus_of(replica))
        if self.is_cpp and self.gpus_each > 1:
            env["TRTLLM_ORCHESTRATOR"] = "1"
        return TritonOptions(
            self.render(folder / "repository"),
            folder,
            grpc_port=ports[0],
            http_port=ports[1],
            metrics_port=ports[2],
            env=env,
            listen=self.listen,
            explicit=(MODEL_NAME,) if self.is_cpp else (),
        )

    def _gpus_of(self, replica: int) -> Sequence[str]:
        wanted = self.replicas * self.gpus_each
        gpus = self.gpus or tuple(map(str, range(wanted)))
        if len(gpus) < wanted:
            raise LaunchFailed(f"{self.replicas} replicas of {self.gpus_each} GPUs each need {wanted}, not {len(gpus)}")
        return gpus[replica * self.gpus_each : (replica + 1) * self.gpus_each]


@asynccontextmanager
async def running_fleet(plan: FleetPlan, tell: Callable[[str], None]) -> AsyncIterator[tuple[EmbeddedTriton, ...]]:
    """All replicas, ready; they start at the same time. Raises: LaunchFailed, with the first one's reason; nothing runs then."""
    servers = [EmbeddedTriton(plan.options(replica)) for replica in range(plan.replicas)]

    async def start(number: int, server: EmbeddedTriton) -> None:
        tell(f"replica {number}: starting (log: {server.log_path})")
        await server.start()
        tell(f"replica {number}: ready on {server.grpc_address}")

    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.stop)
        try:
            async with asyncio.TaskGroup() as starting:
                for number, server in enumerate(servers):
                    starting.create_task(start(number, server))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        yield tuple(servers)
