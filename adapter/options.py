"""The configuration's fields as command line options: one source for names, types, defaults and help."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from adapter.config import Config, ConfigError
from adapter.configuring import field_type, load_config


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command every setting as an option, and ``--config FILE``; it is called with the ``config`` that they make."""

    def with_flags(**given: Any) -> Any:
        names = {field.name for field in dataclasses.fields(Config)}
        flags = {name: value for name, value in given.items() if name in names and value not in (None, ())}
        rest = {name: value for name, value in given.items() if name not in names and name != "config"}
        return command(config=_load(flags, given["config"]), **rest)

    with_flags.__doc__, with_flags.__name__ = command.__doc__, command.__name__
    with_flags.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    for field in reversed(dataclasses.fields(Config)):
        with_flags = _option(field)(with_flags)
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--config", type=path, envvar="ROLLSERVE_CONFIG", help="TOML file with any of these settings.")(
        with_flags
    )


def endpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command ``--triton`` and ``--triton-file``; it is called with the ``addresses`` that they name, or else the
    settings of a server started here."""

    def with_addresses(triton: tuple[str, ...], triton_file: Path | None, **rest: Any) -> Any:
        from adapter.engines import configured_addresses, is_attached
        from engine.errors import EndpointListError

        given = {name: value for name, value in (("triton", triton), ("triton_file", triton_file)) if value}
        config = _load(given, None) if given else server_config()
        try:
            addresses = configured_addresses(config) if is_attached(config) else ()
        except EndpointListError as error:
            raise click.UsageError(str(error)) from error
        return command(addresses=addresses, **rest)

    with_addresses.__doc__, with_addresses.__name__ = command.__doc__, command.__name__
    with_addresses.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    for field in dataclasses.fields(Config):
        if field.name in ("triton", "triton_file"):
            with_addresses = _option(field)(with_addresses)
    return with_addresses


def server_config() -> Config:
    """What a server started here, without any options, would run with. Raises: click.UsageError."""
    file = os.environ.get("ROLLSERVE_CONFIG")
    return _load({}, Path(file) if file else None)


def _load(flags: dict[str, Any], file: Path | None) -> Config:
    try:
        return load_config(flags, os.environ, file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def _option(field: dataclasses.Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind, repeated = field_type(field.name)
    flag = "--" + field.name.replace("_", "-")
    text = field.metadata["help"]
    if field.default not in (None, ()):
        text += f"  [default: {field.default}]"
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=text)
    return click.option(flag, field.name, type=_click_type(kind), multiple=repeated, default=None, help=text)


def _click_type(kind: type) -> Any:
    if issubclass(kind, StrEnum):
        return click.Choice([member.value for member in kind])  # of the members themselves click takes the names
    return click.Path(path_type=Path) if kind is Path else kind
