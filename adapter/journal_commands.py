"""``rollserve journal``: look at a journal, check it, repair it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import click

from adapter.jsontext import dump_json

DIRECTORY = click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False))
KINDS = (
    "open", "turn", "interrupted", "delivered", "finish", "drop", "reply", "weights", "response", "response_deleted",
)  # fmt: skip


@click.group()
def journal() -> None:
    """Look at a journal, check it, repair it.

    DIR is the server's folder (--journal, ROLLSERVE_JOURNAL); without it, the folder that a server here would use.
    """


def _with_folder(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its ``folder``, and make of failures one message and exit status 1."""

    @wraps(command)
    def with_folder(folder: Path | None, **options: Any) -> Any:
        from adapter.journaling import journal_folder
        from adapter.options import server_config
        from adapter.storage.errors import StorageError

        try:
            return command(folder=folder or journal_folder(server_config()), **options)
        except (StorageError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return with_folder


@journal.command()
@DIRECTORY
@_with_folder
def check(folder: Path) -> None:
    """Read every frame, and rebuild every session. Exits 0 if all is sound, 1 if something is damaged.

    Changes nothing, and may run beside the server. A torn frame at the end of a file is no damage: the server stopped while it
    wrote it, nobody was told that it was recorded, and the next start cuts it.
    """
    from adapter.journal_check import check_journal

    report = check_journal(folder)
    layout = report.layout
    click.echo(f"{folder}: generation {layout.generation}, {layout.workers} workers, {report.files} files")
    click.echo(f"bytes: {report.size}, of which {report.needed} are needed")
    click.echo(
        "frames: " + (", ".join(f"{_kind(kind)} {count}" for kind, count in sorted(report.kinds.items())) or "none")
    )
    click.echo(f"sessions: {report.live} live, {report.finished} finished")
    for line in report.torn:
        click.echo(f"torn: {line}")
    for line in report.damage:
        click.echo(f"damage: {line}")
    click.echo("sound" if report.ok else f"damaged: {len(report.damage)} findings")
    sys.exit(0 if report.ok else 1)


@journal.command()
@click.option("--sid", help="Only frames of this session.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only frames of this kind. Repeatable.")
@click.option("--ids", is_flag=True, help="With token ids, log probs and texts; else their numbers.")
@DIRECTORY
@_with_folder
def cat(folder: Path, sid: str | None, kinds: tuple[str, ...], ids: bool) -> None:
    """Print frames, a JSON object a line, as they lie in the files. Exits 1 if some could not be read.

    May run beside the server. Arrays are shown as their number of items, with --ids as the items.
    """
    from adapter.journal_check import laid_out

    damaged = False
    for item in _items(laid_out(folder).segments(folder)):
        if isinstance(item, str):
            damaged = True
            click.echo(item, err=True)
        elif (sid is None or item["sid"] == sid) and (not kinds or item["kind"] in kinds):
            arrays = {name: _shown(array) if ids else int(array.size) for name, array in item["arrays"].items()}
            sys.stdout.buffer.write(dump_json({**item, "arrays": arrays}) + b"\n")
    sys.stdout.buffer.flush()
    sys.exit(1 if damaged else 0)


@journal.command()
@DIRECTORY
@_with_folder
def repair(folder: Path) -> None:
    """Keep what can be read of damaged files, with no server running.

    Frames are copied past unreadable stretches, up to the next one whose checksum is right; the damaged file is kept beside it as
    *.damaged. What was lost is printed. Sessions with a frame missing in the middle are still refused; DELETE drops them. One that
    lost its last frames is there again without them.
    """
    from adapter.journal_check import laid_out
    from adapter.journaling import claimed_whole
    from adapter.storage.repair import repair as repair_files

    layout, repaired = laid_out(folder), 0
    with claimed_whole(folder, layout):
        for each in repair_files(layout.segments(folder)):
            repaired += 1
            click.echo(f"{each.path}: {each.frames} frames kept; as it was: {each.kept}")
            for damage in each.damages:
                whose = (
                    ", ".join(f"frame {number} of session {sid!r}" for sid, number in damage.lost) or "whose is unknown"
                )
                start, length = damage.extent.start, damage.extent.length
                click.echo(f"  lost: offset {start}, {length} bytes ({damage.reason}): {whose}")
    click.echo(f"{repaired} files repaired" if repaired else "nothing to repair")


def _items(folder: Path) -> Iterator[dict[str, Any] | str]:
    """Every frame with its place and its arrays; a text for what cannot be read."""
    from adapter.storage.salvage import Damage, scan
    from adapter.storage.segments import SegmentFile, segments

    for name in segments(folder):
        file = SegmentFile(folder / str(name))
        for item in () if file.is_empty else scan(file):
            if isinstance(item, Damage):
                yield f"damage: {item}"
                continue
            extent, frame = item
            place = {"file": str(name), "offset": extent.start, "bytes": extent.length}
            yield {**place, "kind": _kind(frame.kind), "sid": frame.sid, **frame.header, "arrays": frame.arrays}
        if file.torn_at is not None:
            click.echo(f"torn: {file.path}: offset {file.torn_at}", err=True)


def _kind(kind: int) -> str:
    """Its name, or the number of one that this version does not know."""
    from adapter.storage.frames import FrameKind

    return FrameKind(kind).name.lower() if kind in set(FrameKind) else str(kind)


def _shown(array: Any) -> Any:
    return array.tobytes().decode(errors="replace") if array.dtype.kind == "u" else array.tolist()
