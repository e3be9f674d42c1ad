"""``rollserve engine``: what concerns the engine behind the server."""

from __future__ import annotations

import click

from adapter import fleet_commands, weights_commands


@click.group()
def engine() -> None:
    """Engines: start them, write their model repositories; pause a running server's, give it new weights, look at it."""


fleet_commands.register(engine)
weights_commands.register(engine)
