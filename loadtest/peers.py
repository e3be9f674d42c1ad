"""The server's CPU time of a turn beside other gateways': the Rust gateway ``smg``, and the naive adapter of ``bench_turn``.

    make bench-peers          (python -m loadtest.peers [--peers DIR] [--tokenizer DIR])

The same agent's session at each, turn by turn alternately: about 800 new tokens and a reply of 60, a text and a call, from 9k
tokens of history to more than 100k. Every gateway has an engine behind it that answers at once. What each does:

    rollserve         renders and encodes what is new, streams, records ids and log probs, journal at fsync
    naive             renders and encodes all, streams, keeps lists
    smg grpc          renders and encodes all, ids over gRPC (vLLM's protocol), detokenizes and streams; records nothing
    smg grpc cached   the same with both of its tokenizer caches (whole strings, and prefixes)
    smg http          passes HTTP on; does not see a token

``smg`` is in an environment of its own, DIR. A figure is the median of the nine turns nearest to its length in rollserve's session,
of the CPU time of the gateway's process, all threads. Exits with 2 if ``smg`` is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from engine.assets import demo_model_dir
from loadtest import naive, peers_http
from loadtest.agent import Agent, Writer, script
from loadtest.bench_turn import LENGTHS, NEAREST, QUICK_LENGTHS, Turn, session
from loadtest.figures import Figure, Measured, median
from loadtest.program import Options, run_benchmark, say
from loadtest.system import START_S, Server, SystemFailed, changed_over, scripted_system

OWN = "rollserve"
CACHES = ("--tokenizer-cache-enable-l0", "--tokenizer-cache-enable-l1")
GOAL = 1.0
"""Of the server's CPU time to that of a gateway that renders and encodes."""
SAME_WORK = ("naive", "smg grpc", "smg grpc cached")


class NotInstalled(Exception):
    """``smg`` is not where it should be; the message says what to do."""


def smg_version(folder: Path) -> str:
    """Of the environment in ``folder``. Raises: NotInstalled."""
    program = "import importlib.metadata as m, smg_grpc_proto; print(m.version('smg'))"
    python = folder / "bin" / "python"
    found = (
        subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
        if python.exists()
        else None
    )
    if found is None or found.returncode:
        raise NotInstalled(
            f"smg is not installed in {folder}, so there is nothing to compare with: `make bench-peers` installs it from PyPI"
        )
    return found.stdout.strip()


def reply_ids(folder: Path, writer: Writer) -> list[list[int]]:
    """The scripted reply: its text, then its call and the end token."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text, mark, call = writer.reply().partition("<tool_call>")
    parts = [tokenizer.encode(part, add_special_tokens=False).ids for part in (text, mark + call)]
    return [parts[0], [*parts[1], AutoTokenizer.from_pretrained(folder).eos_token_id]]


@asynccontextmanager
async def process(command: list[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as errors:
        started = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=errors)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


@asynccontextmanager
async def grpc_engine(peers: Path, tokenizer: Path, ids: list[list[int]], folder: Path) -> AsyncIterator[str]:
    """The URL of an engine that speaks vLLM's gRPC protocol. Raises: SystemFailed."""
    file, log = folder / "reply.json", folder / "grpc-engine.log"
    file.write_text(json.dumps(ids))
    program = str(Path(__file__).with_name("peers_grpc.py"))
    command = [str(peers / "bin" / "python"), program, "--ids", str(file), "--tokenizer", str(tokenizer)]
    async with process(command, log) as started:
        assert started.stdout is not None
        if not (url := (await started.stdout.readline()).decode().strip()):
            raise SystemFailed(f"the gRPC engine did not start:\n{end_of(log)}")
        yield url


@asynccontextmanager
async def smg(peers: Path, name: str, engine: str, folder: Path, *options: str) -> AsyncIterator[Server]:
    """The gateway in front of the engine at that URL. Raises: SystemFailed."""
    log, port, metrics = folder / f"{name}.log", free_port(), free_port()
    command = [str(peers / "bin" / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warn"]
    command += ["--prometheus-port", str(metrics), "--prometheus-host", "127.0.0.1", "--worker-urls", engine]
    command += ["--worker-startup-check-interval", "1", "--history-backend", "none", *options]
    async with process(command, log) as started:
        url = f"http://127.0.0.1:{port}"
        await ready(started, f"{url}/readiness", log)
        yield Server(url, started.pid, log)


async def ready(started: asyncio.subprocess.Process, url: str, log: Path) -> None:
    """Until ``url`` answers with 200. Raises: SystemFailed."""
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as http:
        while started.returncode is None and time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise SystemFailed(f"smg did not start:\n{end_of(log)}")


def end_of(log: Path) -> str:
    return log.read_text()[-2000:]


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


async def run(peers: Path, tokenizer: Path, lengths: tuple[int, ...]) -> dict[str, list[Turn]]:
    writer = Writer(tokenizer)
    rendering = ("--tokenizer-path", str(tokenizer), "--tool-call-parser", "qwen", "--backend", "vllm")
    async with scripted_system(script(writer), tokenizer) as system, AsyncExitStack() as stack:
        enter, folder = stack.enter_async_context, system.folder
        http_engine = await enter(peers_http.instant(writer.reply()))
        engine = await enter(grpc_engine(peers, tokenizer, reply_ids(tokenizer, writer), folder))
        servers = {
            OWN: system.server,
            "naive": await enter(naive.running(system.triton, tokenizer, folder / "naive.log")),
            "smg grpc": await enter(smg(peers, "smg-grpc", engine, folder, *rendering)),
            "smg grpc cached": await enter(smg(peers, "smg-cached", engine, folder, *rendering, *CACHES)),
            "smg http": await enter(smg(peers, "smg-http", http_engine, folder, "--disable-tokenizer-autoload")),
        }
        await changed_over(system.server)
        clients = {name: await enter(aiohttp.ClientSession(server.url)) for name, server in servers.items()}
        for kind, longest in (("warm-up", lengths[0]), ("agent", lengths[-1])):
            say(f"{kind}: a session up to {longest} tokens at each of {', '.join(servers)}")
            agents = [(server, Agent(clients[name], kind, writer)) for name, server in servers.items()]
            found = await session(longest, *agents)
        return dict(zip(servers, found, strict=True))


def costs(turns: dict[str, list[Turn]], lengths: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """Milliseconds by length and gateway, each from the same turns of the session; never the first."""
    own = turns[OWN]
    rows = {}
    for length in lengths:
        places = sorted(range(1, len(own)), key=lambda place: abs(own[place].tokens - length))[:NEAREST]
        rows[length] = {name: median([found[place].cpu_ms for place in places]) for name, found in turns.items()}
    return rows


def figures_of(rows: dict[int, dict[str, float]]) -> list[Figure]:
    figures = []
    for length, row in rows.items():
        where = f"{length // 1000}k"
        figures += [Figure(f"{name}: CPU at {where}", cpu_ms, "ms") for name, cpu_ms in row.items()]
        for name in [name for name in row if name != OWN]:
            goal = GOAL if name in SAME_WORK else None
            figures.append(Figure(f"{OWN} / {name} at {where}", row[OWN] / row[name], "x", goal))
    return figures


def beside(rows: dict[int, dict[str, float]]) -> str:
    """A Markdown table: a row for each gateway, milliseconds, and in brackets how many times the server's that is."""
    names = list(next(iter(rows.values())))
    lines = [
        "| CPU ms a turn | " + " | ".join(f"{length // 1000}k" for length in rows) + " |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for name in names:
        cells = (
            f"{row[name]:.1f}" + ("" if name == OWN else f" ({row[name] / row[OWN]:.1f}x)") for row in rows.values()
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(options: Options) -> Measured:
    version = smg_version(options.peers)
    tokenizer, lengths = options.tokenizer or demo_model_dir(), QUICK_LENGTHS if options.quick else LENGTHS
    turns = asyncio.run(run(options.peers, tokenizer, lengths))
    rows = costs(turns, lengths)
    return Measured(figures_of(rows), {"tokenizer": tokenizer.name, "smg": version}, beside(rows))


def add_options(parser: argparse.ArgumentParser) -> None:
    default = Path(sys.prefix) / "peers"
    parser.add_argument("--peers", type=Path, default=default, help="Environment with smg (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> int:
    try:
        run_benchmark("peers", __doc__, measure, argv, add_options, "loadtest.peers")
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
