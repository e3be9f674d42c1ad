"""The ``rollserve`` command.

up            Triton with an embedded model, and the server in front of it, in one command
serve         the server in front of a Triton that is already running
demo          agents talk to a real model; their samples are exported and checked against it
top           a running server, live
sessions      what a running server holds
explain       how each turn of a session was recognised, and what its prompt is made of
export        finish a session and write its samples
engine        start engines; pause a running server's engine, give it new weights, look at it
journal       look at the journal of a server, check it, repair it
verify        check the log probs of a session or of exported samples
loadtest      agents that work on a server, every session judged, a report
check-engine  whether a Triton is fit to be served from
doctor        what this machine lacks, with the line that installs it
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from adapter.acting import acting, run
from adapter.config import Config
from adapter.engine_commands import engine
from adapter.finite import Finite
from adapter.journal_commands import journal
from adapter.loadtest_command import loadtest
from adapter.options import config_options, endpoint_options
from adapter.remote import DEFAULT_URL, call, is_loopback
from adapter.top_command import top


def main() -> None:
    """The console script."""
    # gRPC's event engine hops between threads for every message; without it a message costs half (50 instead of 85 us). Read by
    # gRPC when it is imported, so the commands import what needs it only after this.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
    # Processes that we start do not use gRPC; without this it warns about each.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    cli()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="A rollout server for agent reinforcement learning: agent protocols in, exact token ids and log probs out.",
)
@click.version_option(package_name="rollserve")
def cli() -> None:
    """Set-up of the group; the commands do the work."""


cli.add_command(journal)
cli.add_command(top)
cli.add_command(engine)
cli.add_command(loadtest)


@cli.command()
@config_options
def up(config: Config) -> None:
    """Start Triton with an embedded model and serve in front of it.

    Without options this serves the small demo model on http://127.0.0.1:8400; Ctrl-C ends both.
    """
    run(_serve(config))


@cli.command()
@config_options
def serve(config: Config) -> None:
    """Serve in front of a Triton that is already running (--triton HOST:PORT, --tokenizer DIR)."""
    if not config.triton and config.triton_file is None:
        raise click.UsageError("--triton HOST:PORT is needed; `rollserve up` starts a Triton of its own")
    run(_serve(config))


@cli.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to keep the samples in. Default: a temporary one.",
)
@config_options
def demo(config: Config, out: Path | None) -> None:
    """Run the main job: two agents (Anthropic SDK, OpenAI SDK) on a real model, samples, and a check of every log prob.

    Exits 0 only if the exported log probs agree with a plain forward pass of the model and two deliberate errors are caught.
    """
    from adapter.demo import run_demo

    sys.exit(run(run_demo(config, out)))


@cli.command()
@click.option("--url", default=DEFAULT_URL, envvar="ROLLSERVE_URL", show_default=True, help="The running server.")
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as it is.")
@click.argument("sid", required=False)
def sessions(url: str, as_json: bool, sid: str | None) -> None:
    """List the sessions of a running server, or show one (SID) as a tree."""
    from adapter.views import print_sessions, print_tree

    answer = call("GET", url, f"/v1/sessions/{sid}" if sid else "/v1/sessions")
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    elif sid:
        print_tree(Console(), answer)
    else:
        print_sessions(Console(), answer["sessions"])


@cli.command()
@click.option("--url", default=DEFAULT_URL, envvar="ROLLSERVE_URL", show_default=True, help="The running server.")
@click.option("--reward", type=Finite(), help="Reward of the session; every sample gets it.")
@click.option(
    "--body", default="{}", help="More fields of the finish request, as JSON: leaf_rewards, filters, metadata, ..."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File. Default: standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet", "packed"]),
    help="Rows, or a packed tree (each token once). Default: by the file's name; .npz and .json are packed, else jsonl.",
)
@click.argument("sid")
def export(url: str, reward: float | None, body: str, out: Path | None, form: str | None, sid: str) -> None:
    """Finish the session SID and write its samples. The same export again gives the same samples.

    The ledger goes to standard error: sampled = trained + dropped by reason.
    """
    from adapter.storage.export import ExportFormat, write_export

    fields = {**_json_object(body), **({} if reward is None else {"reward": reward})}
    answer = call("POST", url, f"/v1/sessions/{sid}/finish", fields)
    acting(lambda: write_export(answer, out, ExportFormat(form) if form else None))
    click.echo(f"{len(answer['samples'])} samples of session {sid}; ledger: {json.dumps(answer['ledger'])}", err=True)


@cli.command()
@click.option(
    "--url", default=DEFAULT_URL, envvar="ROLLSERVE_URL", show_default=True, help="The server that has the session."
)
@click.option(
    "--model", type=click.Path(path_type=Path, file_okay=False), help="Checkpoint folder. Default: the demo model."
)
@click.option(
    "--weights",
    multiple=True,
    metavar="VERSION=DIR",
    help="Checkpoint of one weight version, instead of --model; repeat it for each version that sampled.",
)
@click.option("--served-model", metavar="NAME", help="Only what the weights of this served name sampled.")
@click.option(
    "--lora", type=click.Path(path_type=Path, file_okay=False), help="LoRA adapter to merge into the checkpoint."
)
@click.option(
    "--triton", metavar="HOST:PORT", help="Send the turns to this engine again, instead of scoring with --model."
)
@click.option(
    "--tolerance",
    type=Finite(min=0),
    default=1e-3,
    show_default=True,
    help="Largest difference of a log prob, in nats.",
)
@click.argument("target", metavar="SID|FILE")
def verify(
    url: str,
    model: Path | None,
    weights: tuple[str, ...],
    served_model: str | None,
    lora: Path | None,
    triton: str | None,
    tolerance: float,
    target: str,
) -> None:
    """Check the log probs of a session or of exported samples (JSON lines, Parquet or packed).

    With --model, the exported ids are scored by a plain forward pass, with --weights each by the weights of its version; with
    --triton, stored prompts are sent to that engine again. Two deliberate errors must be caught. Exits 1 if anything is wrong.
    """
    from adapter.storage.export import read_samples

    path = Path(target)
    if path.suffix and not path.is_file():
        raise click.ClickException(f"there is no file {target}")
    samples = (
        acting(lambda: read_samples(path))
        if path.is_file()
        else call("GET", url, f"/v1/sessions/{target}/samples")["samples"]
    )
    if (model is not None) + bool(weights) + (triton is not None) > 1:
        raise click.UsageError("--model, --weights and --triton exclude one another")
    if triton is not None and (lora is not None or served_model is not None):
        raise click.UsageError("--lora and --served-model are for scoring with weights; leave them out with --triton")
    if triton is not None:
        from engine.replay import ReplayOptions, replay_at
        from engine.replay_report import render

        replayed = run(replay_at(triton, samples, ReplayOptions(tolerance=tolerance)))
        click.echo(render(replayed))
        sys.exit(0 if replayed.ok else 1)
    from engine import verify as scoring
    from engine.assets import demo_model_dir

    by_version = _weights(weights)
    folder = model or next(iter(by_version.values()), None) or demo_model_dir()
    names: dict[str, Any] = {"served_model": served_model, "lora": lora}
    scored = acting(lambda: scoring.verify_samples(samples, folder, tolerance, by_version, **names))
    click.echo(scoring.render(scored))
    sys.exit(0 if scored.ok else 1)


@cli.command()
@click.option("--url", default=DEFAULT_URL, envvar="ROLLSERVE_URL", show_default=True, help="The running server.")
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as it is.")
@click.argument("sid")
def explain(url: str, as_json: bool, sid: str) -> None:
    """Explain the session SID, turn by turn.

    How its history was recognised (exact, handle, tolerant:..., fork:...), how many prompt ids were reused and how many
    rendered, where the prompt departs from what was known, what was normalised away.
    """
    from adapter.views import print_explanation

    answer = call("GET", url, f"/v1/sessions/{sid}/explain")
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        print_explanation(Console(), answer)


@cli.command("check-engine")
@endpoint_options
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check_engine(addresses: tuple[str, ...], as_json: bool) -> None:
    """Ask each Triton what it speaks and try one generation. Exits 1, with the reason, if one cannot be served from."""
    from adapter.engine_checks import as_document, examine, print_examined

    if not addresses:
        raise click.UsageError("--triton HOST:PORT is needed, or --triton-file")
    examined = run(examine(addresses))
    if as_json:
        click.echo(json.dumps(as_document(examined)))
    else:
        print_examined(Console(), examined)
    if faults := [f"{each.address}: {each.fault}" for each in examined if each.fault is not None]:
        raise click.ClickException("; ".join(faults))


@cli.command()
@endpoint_options
def doctor(addresses: tuple[str, ...]) -> None:
    """Check what this machine needs for the embedded engine and the tests, and the engines that are named.

    Exits 1 if something needed is missing.
    """
    from adapter.doctor import print_checks
    from adapter.engine_checks import engine_check, examine

    engines = [engine_check(each) for each in run(examine(addresses))] if addresses else []
    sys.exit(0 if print_checks(Console(), engines) else 1)


async def _serve(config: Config) -> None:
    from adapter.logs import setup_logging
    from adapter.workers.serving import everything_in_one, everything_with_workers

    setup_logging(config.log_format, config.log_level)
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    running = everything_with_workers if config.workers > 1 else everything_in_one
    async with running(config, lambda line: click.echo(line, err=True)) as url:
        click.echo(f"rollserve listens on {url}  (model {config.served_model_name!r})")
        if config.admin_key is None and not is_loopback(config.host):
            click.echo(
                f"warning: {config.host} is reached from elsewhere, and anybody may use this server; see --admin-key-file",
                err=True,
            )
        click.echo(f"  Anthropic SDK, Claude Code:  ANTHROPIC_BASE_URL={url}")
        click.echo(f"  OpenAI SDK:                  OPENAI_BASE_URL={url}/v1")
        await stopped.wait()
        click.echo("stopping", err=True)


def _weights(items: tuple[str, ...]) -> dict[int, Path]:
    from engine.weights_by_version import read_weights

    try:
        return read_weights(items)
    except ValueError as error:
        raise click.UsageError(f"--weights: {error}") from error


def _json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise click.UsageError("--body must be a JSON object")
    return document
