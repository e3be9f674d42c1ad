"""Where the configuration comes from: flags, environment and an optional TOML file.

Precedence: flag, then ``ROLLSERVE_<NAME>`` in the environment, then the file, then the field's default.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from adapter.config import Config, ConfigError

ENVIRONMENT_PREFIX = "ROLLSERVE_"
NOT_CONFIGURATION = frozenset({"ROLLSERVE_CACHE", "ROLLSERVE_CONFIG", "ROLLSERVE_URL"})
"""Variables of our prefix that are no field: the asset cache, the path of the file, the server that client commands talk to."""

MODEL_SETTINGS = (
    "triton",
    "triton_file",
    "tokenizer",
    "chat_template",
    "end_token",
    "tool_parser",
    "reasoning_parser",
    "model_alias",
    "lora",
    "max_context_tokens",
)
"""What each of several models has of its own."""
_EMBEDDED = ("engine_model", "engine_setting", "engine_log", "model_dir")


def load_config(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Build the configuration. ``flags`` holds only what was given on the command line.

    Raises: ConfigError, naming the setting and its source.
    """
    fields = {field.name: field for field in dataclasses.fields(Config)}
    values: dict[str, Any] = {}
    for source, given in (
        (str(file), _read_file(file)),
        ("the environment", _from_environment(environ)),
        ("the command line", dict(flags)),
    ):
        for name, raw in given.items():
            if name not in fields:
                raise ConfigError(f"unknown setting {name!r} in {source}; `rollserve serve --help` lists all of them")
            values[name] = _convert(name, raw, source)
    return Config(**_with_key_read(values))


def further_models(config: Config) -> tuple[Config, ...]:
    """The configurations of the models in ``config.models``: those settings that are a model's own, the rest as in ``config``.

    Raises: ConfigError, naming the model and the setting.
    """
    return tuple(_further_model(config, name, given) for name, given in _read_file(config.models).items())


def _further_model(config: Config, name: str, given: Any) -> Config:
    source = f"[{name}] of {config.models}"
    if not isinstance(given, dict):
        raise ConfigError(f"{name!r} in {config.models} is no table; a model is [NAME], with its settings below")
    values = _defaults(MODEL_SETTINGS)
    for setting, raw in given.items():
        if setting not in MODEL_SETTINGS:
            raise ConfigError(
                f"{setting!r} in {source} is no setting of a model; those are {', '.join(MODEL_SETTINGS)}"
            )
        values[setting] = _convert(setting, raw, source)
    if not (values["triton"] or values["triton_file"]) or values["tokenizer"] is None:
        raise ConfigError(f"{source} needs triton (or triton_file) and tokenizer")
    own = {**_defaults(_EMBEDDED), **values, "served_model_name": name, "models": None}
    try:
        return dataclasses.replace(config, **own)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _defaults(names: Sequence[str]) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(Config) if field.name in names}


def _with_key_read(values: dict[str, Any]) -> dict[str, Any]:
    """The admin key in place of its file. Raises: ConfigError."""
    file = values.get("admin_key_file")
    if file is None:
        return values
    if values.get("admin_key") is not None:
        raise ConfigError("admin_key and admin_key_file are both set; one of them is enough")
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the admin key from {file}: {error}") from error
    return {**values, "admin_key": key, "admin_key_file": None}


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in NOT_CONFIGURATION
    }


def field_type(name: str) -> tuple[type, bool]:
    """``(type of one value, whether it may be repeated)`` of a field."""
    hint = typing.get_type_hints(Config)[name]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint, False


def _convert(name: str, raw: Any, source: str) -> Any:
    kind, repeated = field_type(name)
    try:
        if repeated:
            return tuple(kind(item) for item in (raw.split(",") if isinstance(raw, str) else raw))
        return _convert_one(kind, raw)
    except (TypeError, ValueError) as error:
        shown = "the value" if _is_secret(name) else repr(raw)
        raise ConfigError(f"{name} = {shown} in {source} is not {_expected(kind)}") from (
            None if _is_secret(name) else error
        )


def _is_secret(name: str) -> bool:
    return bool(next(field.metadata["secret"] for field in dataclasses.fields(Config) if field.name == name))


def _expected(kind: type) -> str:
    return f"one of {', '.join(kind)}" if issubclass(kind, StrEnum) else f"a valid {kind.__name__}"


def _convert_one(kind: type, raw: Any) -> Any:
    if kind is bool:
        return _boolean(raw)
    if isinstance(raw, bool) or (kind is int and isinstance(raw, float)):
        raise TypeError
    return kind(raw)


def _boolean(raw: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(raw, bool):
        return raw
    return words[raw.lower()] if isinstance(raw, str) and raw.lower() in words else _refuse(raw)


def _refuse(raw: Any) -> bool:
    raise ValueError(raw)
