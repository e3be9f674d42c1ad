"""The conversations that every CLI holds. Each function writes one; ``SCENARIOS`` names them."""

from __future__ import annotations

from collections.abc import Callable

from tests.clients.cli import Cli, Place
from tests.clients.scripts import Story

ANSWER = "ALL DONE"
CONTENT = "first line\nzweite Zeile: äöü €\n\tthird \"quoted\" \\ line\n"
RESULT = "TOTAL 42"
COMMAND = "echo TOTAL $((40 + 2))"
"""``RESULT`` stands nowhere in the script: it is in a prompt only if the CLI ran the command and sent what it printed."""

Tell = Callable[[Story, Cli, Place], None]


def task(story: Story, cli: Cli, place: Place) -> None:
    """Write a file, run a command, read the file back, answer."""
    file = place.work / "notes.txt"
    story.then("start", "wrote", "I write the file.", cli.tools.write(file, CONTENT))
    story.then("wrote", "ran", "Now a command.", cli.tools.run(COMMAND))
    story.then("ran", "read", "And back again.", cli.tools.read(file))
    story.then("read", "end", ANSWER)


SCENARIOS: dict[str, Tell] = {"task": task}
