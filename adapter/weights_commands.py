"""``rollserve engine pause | resume | weights | status``: a running server's engine, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from adapter.finite import Finite
from adapter.remote import DEFAULT_URL, call

Command = Callable[..., Any]


def _server_options(command: Command) -> Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print the server's answer as it is.")(command)
    return click.option(
        "--url", default=DEFAULT_URL, envvar="ROLLSERVE_URL", show_default=True, help="The running server."
    )(command)


def _hold_options(command: Command) -> Command:
    mode = click.Choice(["drain", "cut"])
    command = click.option(
        "--deadline", "deadline_s", type=Finite(min=0), help="Seconds until drain cuts what still runs."
    )(command)
    return click.option("--mode", type=mode, help="Let what runs end until the deadline, or cut it at once.")(command)


@click.command()
@_server_options
@_hold_options
@click.option("--lease", "lease_s", type=Finite(min=1), help="Seconds after which the pause ends by itself.")
def pause(url: str, as_json: bool, mode: str | None, deadline_s: float | None, lease_s: float | None) -> None:
    """Hold all generations: those that run end or are cut, new turns wait. Again: the lease begins anew."""
    body = _given(mode=mode, deadline_s=deadline_s, lease_s=lease_s)
    _print_state(call("POST", url, "/v1/engine/pause", body), as_json)


@click.command()
@_server_options
def resume(url: str, as_json: bool) -> None:
    """End a pause: what was cut goes on from the tokens that it has."""
    _print_state(call("POST", url, "/v1/engine/resume", {}), as_json)


@click.command()
@_server_options
@_hold_options
@click.option("--path", help="The checkpoint, as the engine's host sees it.")
@click.option("--model", help="The served model. Default: the first.")
@click.argument("version", type=click.IntRange(0, 2**31 - 1))
def weights(
    url: str,
    as_json: bool,
    mode: str | None,
    deadline_s: float | None,
    path: str | None,
    model: str | None,
    version: int,
) -> None:
    """Put new weights in force under the name VERSION, on every endpoint, and go on.

    Exits 1 if no endpoint took them; one that did not is out of service until it has.
    """
    body = _given(version=version, path=path, model=model, mode=mode, deadline_s=deadline_s)
    answer = call("POST", url, "/v1/engine/weights", body)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    table = Table("endpoint", "weight version", "failure", title=f"{answer['model']}: weights {answer['version']}")
    for endpoint in answer["endpoints"]:
        table.add_row(endpoint["address"], str(endpoint["weight_version"]), endpoint["error"] or "")
    console = Console()
    console.print(table)
    console.print(f"on hold for {answer['paused_ms']:g} ms, {answer['drained_ms']:g} ms of it to drain or cut")


@click.command()
@_server_options
def status(url: str, as_json: bool) -> None:
    """Whether the engine is paused, which weights are in force, and how its endpoints are."""
    _print_state(call("GET", url, "/v1/engine"), as_json)


def register(group: click.Group) -> None:
    """Add the commands to ``rollserve engine``."""
    for command in (pause, resume, weights, status):
        group.add_command(command)


def _given(**fields: Any) -> dict[str, Any]:
    """The server has the defaults of the rest."""
    return {name: value for name, value in fields.items() if value is not None}


def _print_state(state: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(state, indent=2))
        return
    console = Console()
    console.print(f"paused, for {state['lease_left_s']:g} s more at most" if state["paused"] else "not paused")
    if state["updating"] is not None:
        console.print(f"an update of {state['updating']['model']} to version {state['updating']['version']} is running")
    for model in state["models"]:
        console.print(_endpoints(model))


def _endpoints(model: Mapping[str, Any]) -> Table:
    path = f" ({model['path']})" if model["path"] else ""
    table = Table("endpoint", "used", "live", "weight version", "last failure")
    table.title = f"{model['model']}: weights {model['weight_version']}{path}"
    for endpoint in model["endpoints"]:
        used = "draining" if endpoint["draining"] else "yes" if endpoint["healthy"] else f"no ({endpoint['breaker']})"
        version = "unknown" if endpoint["weight_version"] is None else str(endpoint["weight_version"])
        table.add_row(endpoint["address"], used, str(endpoint["live"]), version, endpoint["last_error"] or "")
    return table
