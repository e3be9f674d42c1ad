"""``rollserve engine render | build | up``: model repositories, engines and servers, on the engines' own host.

What brings gRPC with it is imported by the commands, see ``cli.main``.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adapter.acting import acting, run
from engine.build import DTYPES, FAMILIES, BuildPlan, build_engine

if TYPE_CHECKING:
    from engine.fleet import FleetPlan

CPP_MODEL = "tensorrt_llm_engine"
PYTHON_MODEL = "tensorrt_llm"
MODELS = f"{PYTHON_MODEL}, {CPP_MODEL}, transformers or scripted"
FOLDER = click.Path(path_type=Path)

_settings = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter of the model; may be repeated."
)


def register(group: click.Group) -> None:
    """Add the commands to ``group``."""
    for command in (render, build, up):
        group.add_command(command)


@click.command()
@click.option("--engine-dir", type=FOLDER, help=f"Of {CPP_MODEL}: the folder that trtllm-build wrote.")
@click.option("--weight-version", type=click.IntRange(0, 2**31 - 1), default=0, help="The version of its weights.")
@_settings
@click.argument("model")
@click.argument("target", type=FOLDER)
def render(engine_dir: Path | None, weight_version: int, settings: tuple[str, ...], model: str, target: Path) -> None:
    """Write a model repository for MODEL into the folder TARGET, for a tritonserver to load.

    MODEL is tensorrt_llm, tensorrt_llm_engine (TensorRT-LLM's C++ backend over a built engine), transformers or scripted.
    """
    from engine.engine_config import render_engine
    from engine.repository import render_repository

    given = _pairs(settings)
    if model != CPP_MODEL and engine_dir is not None:
        raise click.UsageError(f"--engine-dir is for {CPP_MODEL}; others take their folder with --set")
    if model != CPP_MODEL:
        version = {"weight_version": str(weight_version)} if weight_version else {}
        acting(lambda: render_repository(model, target, {**given, **version}))
    elif engine_dir is None:
        raise click.UsageError(f"{CPP_MODEL} needs --engine-dir, the folder that trtllm-build wrote")
    else:
        acting(lambda: render_engine(engine_dir, target, given, weight_version=weight_version))
    click.echo(f"tritonserver --model-repository={target.absolute()} --disable-auto-complete-config")


@click.command()
@click.option("--family", type=click.Choice(list(FAMILIES)), required=True, help="Whose conversion script to use.")
@click.option(
    "--examples", type=FOLDER, default=Path("/app/tensorrt_llm/examples"), help="Of TensorRT-LLM's repository."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True)
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline parallel.")
@click.option("--max-batch-size", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--max-num-tokens", type=click.IntRange(min=1), default=8192, show_default=True, help="In one forward pass."
)
@click.option("--max-seq-len", type=click.IntRange(min=2), default=32768, show_default=True, help="Prompt and output.")
@click.option("--show", is_flag=True, help="Print the commands and do nothing.")
@click.argument("checkpoint", type=FOLDER)
@click.argument("target", type=FOLDER)
def build(
    family: str,
    examples: Path,
    dtype: str,
    tp: int,
    pp: int,
    max_batch_size: int,
    max_num_tokens: int,
    max_seq_len: int,
    show: bool,
    checkpoint: Path,
    target: Path,
) -> None:
    """Build a TensorRT engine from CHECKPOINT into TARGET, with TensorRT-LLM's own commands (its 1.2 line)."""
    sizes = (tp, pp, max_batch_size, max_num_tokens, max_seq_len)
    plan = acting(lambda: BuildPlan(checkpoint, target, family, examples, dtype, *sizes))
    if show:
        for command in plan.commands():
            click.echo(shlex.join(command))
        return
    folder = acting(lambda: build_engine(plan, click.echo))
    click.echo(f"the engine is in {folder}; now: rollserve engine up --engine-model {CPP_MODEL} --model {folder}")


@click.command()
@click.option(
    "--model", type=FOLDER, help="The checkpoint; of the C++ model, the engine's folder; of the scripted one, none."
)
@click.option(
    "--engine-model",
    default=PYTHON_MODEL,
    show_default=True,
    help=f"Which model of model_repo runs it: {MODELS}.",
)
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Servers.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs that share each layer.")
@click.option(
    "--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Groups of layers on their own GPUs."
)
@click.option("--gpus", default="", help="Which GPUs, with commas between them. Default: from 0 on.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8001,
    show_default=True,
    help="First gRPC port; three ports a replica; 0: free ones.",
)
@click.option("--endpoints", type=FOLDER, help="File for the addresses, as `serve --triton-file` reads it.")
@click.option("--run-dir", type=FOLDER, help="Folder for repositories and logs. Default: a temporary one.")
@_settings
def up(
    model: Path | None,
    engine_model: str,
    replicas: int,
    tp: int,
    pp: int,
    gpus: str,
    host: str,
    port: int,
    endpoints: Path | None,
    run_dir: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Start tritonservers on this host, one for each replica, and keep them running until Ctrl-C.

    On a GPU host run it in Triton's TensorRT-LLM container; model_repo/deploy/compose.yaml does. The models `transformers` and
    `scripted` run anywhere.
    """
    from engine.fleet import FleetPlan

    with ExitStack() as stack:
        folder = run_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollserve-engine-")))
        plan = FleetPlan(
            render=partial(_render_replica, engine_model, model, tp, pp, _pairs(settings)),
            run_dir=folder,
            replicas=replicas,
            gpus_each=tp * pp if engine_model in (PYTHON_MODEL, CPP_MODEL) or gpus else 0,
            gpus=tuple(filter(None, gpus.split(","))),
            base_port=port,
            listen=host,
            is_cpp=engine_model == CPP_MODEL,
        )
        run(_keep_up(plan, endpoints))


async def _keep_up(plan: FleetPlan, endpoints: Path | None) -> None:
    from engine.fleet import running_fleet

    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    async with running_fleet(plan, click.echo) as servers:
        addresses = [_reached_as(plan.listen, server.grpc_address) for server in servers]
        if endpoints is not None:
            _write(endpoints, addresses)
            click.echo(f"now: rollserve serve --triton-file {endpoints} --tokenizer FOLDER")
        else:
            options = " ".join(f"--triton {address}" for address in addresses)
            click.echo(f"now: rollserve serve {options} --tokenizer FOLDER")
        await stopped.wait()
        click.echo("stopping")


def _render_replica(
    engine_model: str, model: Path | None, tp: int, pp: int, settings: dict[str, str], target: Path
) -> Path:
    """Raises: RepositoryError."""
    from engine.engine_config import render_engine
    from engine.repository import render_repository

    if engine_model == CPP_MODEL:
        if model is None:
            raise click.UsageError(f"{CPP_MODEL} needs --model, the folder that trtllm-build wrote")
        return render_engine(model, target, settings)
    own = {} if model is None else {"model_dir": str(model.absolute())}
    if engine_model == PYTHON_MODEL:
        own |= {"tensor_parallel_size": str(tp), "pipeline_parallel_size": str(pp)}
    return render_repository(engine_model, target, {**own, **settings})


def _reached_as(listen: str, address: str) -> str:
    """The address as another host reaches it."""
    if listen in ("127.0.0.1", "localhost"):
        return address
    host = socket.gethostname() if listen in ("0.0.0.0", "::") else listen
    return f"{host}:{address.rpartition(':')[2]}"


def _write(file: Path, addresses: Sequence[str]) -> None:
    """At once and whole: somebody may be reading it."""
    new = file.with_name(f".{file.name}.new")
    new.write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
    new.replace(file)


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, value in pairs:
        if not (name and equals):
            raise click.UsageError(f"--set {name}{equals}{value}: it takes NAME=VALUE")
    return {name: value for name, _, value in pairs}
