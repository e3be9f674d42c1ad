"""The conversations that every CLI holds. Each function writes one; ``SCENARIOS`` names them.

All of them end with ``ANSWER``, after the work is done.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.clients.cli import Cli, Place
from tests.clients.scripts import Story

ANSWER = "ALL DONE"
FIRST_ANSWER = "HALF DONE"
CONTENT = 'first line\nzweite Zeile: äöü €\n\tthird "quoted" \\ line\n'
RESULT = "TOTAL 42"
COMMAND = "printf 'TOTAL %d' 0x2a"
"""``RESULT`` stands nowhere in the script: it is in a prompt only if the CLI ran the command and sent what it printed."""

PROSE = "Before I do that, let me say at some length what I am about to do and why it has to be done in this way. " * 3
"""Some 75 tokens."""
LONG_CONTENT = "A line of the file that is being written.\n" * 30
"""Some 300 tokens."""
SILENCE_S = 60.0
FLOOD = "seq 10000 10800"
"""Some 4800 tokens of output."""
ROOM_TOKENS = 8000
"""What an overflowing session has beyond the CLI's first prompt: room for one flood, not for two."""

Tell = Callable[[Story, Cli, Place], None]


def task(story: Story, cli: Cli, place: Place) -> None:
    """Write a file, run a command, read the file back, answer."""
    file = place.work / "notes.txt"
    story.then("start", "wrote", "I write the file.", cli.tools.write(file, CONTENT))
    story.then("wrote", "ran", "Now a command.", cli.tools.run(COMMAND))
    story.then("ran", "read", "And back again.", cli.tools.read(file))
    story.then("read", "end", ANSWER)


def resumed(story: Story, cli: Cli, place: Place) -> None:
    """Two prompts: run a command; write a file and read it, in the same conversation.

    No file before the second prompt: Qwen Code and Gemini CLI list the folder in their first message, anew when they resume.
    """
    file = place.work / "notes.txt"
    story.then("start", "ran", "I run it.", cli.tools.run(COMMAND))
    story.then("ran", "first", FIRST_ANSWER)
    story.then("again", "wrote", "I write the file.", cli.tools.write(file, CONTENT))
    story.then("wrote", "read", "I read it.", cli.tools.read(file))
    story.then("read", "end", ANSWER)


def delegated(story: Story, cli: Cli, place: Place) -> None:
    """A sub-agent runs the command; the main agent writes the file."""
    story.then("start", "asked", "An agent shall do it.", cli.tools.agent(story.prompt("part", "Run the command.")))
    if cli.tools.meanwhile is None:
        story.then("asked", "waiting", "I wait.")
    else:
        story.then("asked", "asked", "I wait.", cli.tools.meanwhile)
    story.then("part", "ran", "I run it.", cli.tools.run(COMMAND))
    report = cli.tools.report
    story.then("ran", "told", "It ran.", *([] if report is None else [report(story.prompt("told", "It ran."))]))
    story.then("told", "wrote", "I write the file.", cli.tools.write(place.work / "notes.txt", CONTENT))
    story.then("wrote", "end", ANSWER)


def cut_call(story: Story, cli: Cli, place: Place) -> None:
    """The engine breaks once, in the middle of a call's arguments, for good."""
    write = cli.tools.write(place.work / "notes.txt", LONG_CONTENT)
    story.then("start", "torn", "I write it.", write, times=1, fault={"kind": "cut", "after": 150, "lasting": True})
    for step in ("start", "torn"):  # some CLIs send what came before the cut, some ask again
        story.then(step, "wrote", "I write it.", write)
    story.then("wrote", "ran", "Now a command.", cli.tools.run(COMMAND))
    story.then("ran", "end", ANSWER)


def cut_text(story: Story, cli: Cli, place: Place) -> None:
    """The engine breaks once, in the middle of a text, for good."""
    write = cli.tools.write(place.work / "notes.txt", CONTENT)
    story.then("start", "wrote", "I write it.", write)
    story.then(
        "wrote", "ran", PROSE, cli.tools.run(COMMAND), times=1, fault={"kind": "cut", "after": 50, "lasting": True}
    )
    story.then("wrote", "ran", PROSE, cli.tools.run(COMMAND))
    story.then("ran", "end", ANSWER)


def silence(story: Story, cli: Cli, place: Place) -> None:
    """The engine says nothing for a minute in the middle of a reply."""
    write = cli.tools.write(place.work / "notes.txt", CONTENT)
    story.then("start", "wrote", PROSE, write, fault={"kind": "stall", "after": 50, "seconds": SILENCE_S})
    story.then("wrote", "ran", "Now a command.", cli.tools.run(COMMAND))
    story.then("ran", "end", ANSWER)


def overflow(story: Story, cli: Cli, place: Place) -> None:
    """Two commands print more than the session's context has room for; a summary in place of the history makes room again."""
    story.then("start", "wrote", "I write the file.", cli.tools.write(place.work / "notes.txt", CONTENT))
    story.then("wrote", "flooded", "Now much text.", cli.tools.run(FLOOD))
    story.then("flooded", "again", "And again.", cli.tools.run(FLOOD))
    story.summary("summed")
    for last in ("again", "summed"):  # some CLIs keep the newest turns beside the summary
        story.then(last, "ran", "Now the command.", cli.tools.run(COMMAND))
    story.then("ran", "end", ANSWER)


SCENARIOS: dict[str, Tell] = {
    "task": task,
    "resumed": resumed,
    "delegated": delegated,
    "cut-call": cut_call,
    "cut-text": cut_text,
    "busy": task,
    "own-name": task,
    "silence": silence,
    "overflow": overflow,
}
