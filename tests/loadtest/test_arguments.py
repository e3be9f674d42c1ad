"""Mistakes on the command line are told before anything starts."""

from __future__ import annotations

import pytest

from loadtest.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--users", "0"], "--users: it is 0, and must be 1 or more"),
        (["--workers", "0"], "--workers: it is 0"),
        (["--minutes", "0"], "--minutes: it is 0.0, and must be 0.01 or more"),
        (["--minutes", "nan"], "--minutes: it is nan"),
        (["--minutes", "inf"], "--minutes: it is inf"),
        (["--scale", "0"], "--scale: it is 0.0"),
        (["--scale", "2"], "--scale: it is 2.0, and must be 1 or less"),
        (["--gap-scale", "-1"], "--gap-scale: it is -1.0"),
        (["--url", "host:8400"], "--url: 'host:8400' has not the form http://HOST:PORT"),
        (["--no-sessions"], "--no-sessions: it is for a server that is named with --url"),
        (["--shape", "round"], "--shape: "),
    ],
)
def test_a_mistake_is_named(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err
