"""Running what a command does: on uvloop, and with failures told as messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from adapter.config import ConfigError


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run on uvloop, with failures as ``acting`` tells them."""
    import uvloop

    return acting(lambda: uvloop.run(main))


def acting(act: Callable[[], Any]) -> Any:
    """Failures that a person can do something about become one message and exit status 1."""
    from adapter.parsing import UnknownParser
    from adapter.render.prompt import TokenizerError
    from adapter.storage.errors import StorageError
    from adapter.workers.supervisor import WorkersFailed
    from engine.assets import AssetError
    from engine.errors import EngineError

    known = (EngineError, AssetError, ConfigError, TokenizerError, UnknownParser, StorageError, WorkersFailed, OSError)
    try:
        return act()
    except known as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)
