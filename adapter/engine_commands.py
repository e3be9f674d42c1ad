"""``rollserve engine``: what concerns the engine behind the server."""

from __future__ import annotations

import click

from adapter import weights_commands


@click.group()
def engine() -> None:
    """The engine behind a server: pause it, give it new weights, look at it."""


weights_commands.register(engine)
