"""The command line's options take what the README, the help and the other sources of settings call the values."""

from __future__ import annotations

from enum import StrEnum

import click
import pytest
from click.testing import CliRunner

from adapter.config import Config
from adapter.options import config_options
from adapter.types import Durability, HistoryPolicy


def parsed(*arguments: str) -> Config:
    found: list[Config] = []
    result = CliRunner().invoke(click.command()(config_options(lambda config: found.append(config))), arguments)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize("value", [*Durability, *HistoryPolicy])
def test_a_choice_is_taken_by_its_value(value: StrEnum) -> None:
    flag, name = (
        ("--durability", "durability") if isinstance(value, Durability) else ("--history-policy", "history_policy")
    )
    assert getattr(parsed(flag, value.value), name) is value


def test_another_value_is_refused_with_those_that_are_known() -> None:
    command = click.command()(config_options(lambda config: None))
    result = CliRunner().invoke(command, ["--durability", "fsinc"])
    assert result.exit_code == 2
    assert "'none', 'os', 'fsync'" in result.output
