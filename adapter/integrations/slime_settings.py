"""What the generate function for slime is told, by slime's arguments or by the environment."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

ARGUMENT_PREFIX = "rollserve_"
ENVIRONMENT_PREFIX = "SLIME_ROLLSERVE_"
"""Not ``ROLLSERVE_``: those are the server's own settings, and it refuses what it does not know."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_.-]+)\}")

_PINNED = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
_DEFAULT = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_ABOUT_TEXT = frozenset({"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "custom_params"})
"""How slime's own engine returns text and extras; ids do not depend on them."""
_MUST_BE_EMPTY = ("stop", "stop_token_ids")


class SlimeConfigError(ValueError):
    """A setting is missing or cannot be honoured; the message names it."""


@dataclass(frozen=True, slots=True)
class SlimeSettings:
    """Each is ``args.rollserve_NAME``, else ``SLIME_ROLLSERVE_NAME`` in the environment, else the default."""

    url: str
    """The server's, as agents reach it; ``ROLLSERVE_URL`` counts too."""
    command: str
    """The agent's command line, split as a shell would, without a shell. ``{prompt}``, ``{sid}``, ``{base_url}``,
    ``{openai_base_url}`` and ``{metadata.KEY}`` of the sample are filled in. The prompt is also its standard input. It runs in
    an empty folder of its own, so files are named by absolute paths."""
    timeout_s: float = 1800.0
    """For the agent's run."""
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL after that."""
    http_timeout_s: float = 300.0
    """For opening and finishing a session."""
    api_key: str = ""
    """Where the server asks for one: sent by us, and given to the agent."""
    filters: str = "{}"
    """JSON: the filters of the export."""

    @classmethod
    def read(cls, args: Any, environ: Mapping[str, str]) -> SlimeSettings:
        """Raises: SlimeConfigError."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            found = getattr(args, ARGUMENT_PREFIX + field.name, None)
            if found is None:
                found = environ.get(ENVIRONMENT_PREFIX + field.name.upper())
            if found is None and field.name == "url":
                found = environ.get("ROLLSERVE_URL")
            if found is not None:
                values[field.name] = _converted(field.name, found, number=field.name.endswith("_s"))
            elif field.default is MISSING:
                raise SlimeConfigError(
                    f"set {ARGUMENT_PREFIX}{field.name} (in slime's --custom-config-path file) or "
                    f"{ENVIRONMENT_PREFIX}{field.name.upper()} in the environment"
                )
        return cls(**values)

    @property
    def export_filters(self) -> dict[str, Any]:
        """Raises: SlimeConfigError."""
        try:
            found = json.loads(self.filters)
        except json.JSONDecodeError as error:
            raise SlimeConfigError(f"{ARGUMENT_PREFIX}filters is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise SlimeConfigError(f"{ARGUMENT_PREFIX}filters must be a JSON object")
        return found

    def words(self, values: Mapping[str, str]) -> list[str]:
        """The command's words with the placeholders filled in. Raises: SlimeConfigError, naming one that has no value."""

        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                raise SlimeConfigError(f"{ARGUMENT_PREFIX}command: nothing is known for {found[0]}")
            return values[found[1]]

        return [_PLACEHOLDER.sub(value, word) for word in shlex.split(self.command)]


def session_sampling(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """slime's sampling parameters as the sampling of a session.

    What shapes the distribution is pinned: agents send whatever they like. Limits and the seed are defaults: an agent may ask
    for less, and two turns with one pinned seed would be drawn alike.

    Raises: SlimeConfigError, for a parameter that would change the samples and cannot be honoured.
    """
    pinned: dict[str, Any] = {}
    default: dict[str, Any] = {}
    for name, value in sampling_params.items():
        if name in _ABOUT_TEXT or value is None or (name in _MUST_BE_EMPTY and not value):
            continue
        if name in _PINNED:
            pinned[_PINNED[name]] = max(0, value) if name == "top_k" else value
        elif name in _DEFAULT:
            default[_DEFAULT[name]] = value
        else:
            raise SlimeConfigError(f"the sampling parameter {name}={value!r} cannot be honoured for agents")
    return {"pinned": pinned, "default": default}


def _converted(name: str, value: Any, *, number: bool) -> Any:
    if not number:
        return str(value)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise SlimeConfigError(f"{ARGUMENT_PREFIX}{name} is {value!r}, not a number of seconds") from error
