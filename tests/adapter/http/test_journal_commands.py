"""``rollserve journal``: beside a server and without one, on a sound journal and on a damaged one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import cli
from adapter.ownership import Ownership
from adapter.storage import recovery
from adapter.storage.frames import Extent
from adapter.storage.layout import prepare
from adapter.storage.salvage import scan
from adapter.storage.segments import SegmentFile, SegmentName, segments
from adapter.trajectory import SavedTurn, saved
from tests.adapter.http.test_keep import END, ask, finish, open_session, user
from tests.adapter.http.test_prefill import said
from tests.support.engine import Answer, FakeEngine


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(cli, ["journal", *map(str, arguments)], env=env)


def cat(*arguments: str) -> list[dict]:
    result = run("cat", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def filled(serve, encode, tmp_path: Path) -> Callable[[], object]:
    """A server over a journal with a session of two turns, one of one, a finished one and a dropped one."""

    async def fill(look: Callable[[], object] = lambda: None) -> Path:
        answers = [Answer([[*encode(text), END]]) for text in ("one", "two", "three", "four")]
        async with serve(FakeEngine(answers), journal=tmp_path) as server:
            for sid in ("a", "b", "done", "gone"):
                await open_session(server, sid)
            await ask(server, [user("x")], "a")
            await ask(server, [user("x"), said("one"), user("y")], "a")
            await ask(server, [user("x")], "b")
            await ask(server, [user("x")], "done")
            await finish(server, "done")
            async with server.http.delete("/v1/sessions/gone"):
                pass
            look()
        return tmp_path / "000001"

    return fill


def place(folder: Path, kind: str, sid: str) -> tuple[Path, Extent]:
    """The first such frame."""
    for name in segments(folder):
        file = SegmentFile(folder / str(name))
        for extent, frame in scan(file):
            if frame.sid == sid and frame.kind == {"open": 1, "turn": 2, "finish": 5}[kind]:
                return file.path, extent
    raise AssertionError


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


async def test_a_sound_journal_beside_its_server(filled, tmp_path: Path) -> None:
    seen: list[Result] = []
    await filled(lambda: seen.append(run("check", tmp_path)))
    for result in (*seen, run("check", tmp_path), run("check", ROLLSERVE_JOURNAL=str(tmp_path))):
        assert result.exit_code == 0, result.output
        assert "frames: open 4, turn 4, delivered 4, finish 1, drop 1" in result.output
        assert "sessions: 2 live, 1 finished" in result.output
        assert result.output.endswith("sound\n")


async def test_check_reads_anew_when_a_compaction_took_a_file_away(filled, tmp_path: Path, monkeypatch) -> None:
    folder = await filled()
    (name,) = segments(folder)
    listings = iter([[name, SegmentName(0, name.last + 1, name.last + 1)]])
    monkeypatch.setattr(recovery, "segments", lambda where: next(listings, [name]))
    assert run("check", tmp_path).exit_code == 0
    monkeypatch.setattr(recovery, "segments", lambda where: [SegmentName(0, 9, 9)])
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "is no longer there" in result.output


async def test_check_changes_nothing_and_shows_a_torn_tail(filled, tmp_path: Path) -> None:
    folder = await filled()
    path = folder / str(segments(folder)[-1])
    path.write_bytes(path.read_bytes()[:-3])
    before = {each: each.read_bytes() for each in folder.iterdir()}
    result = run("check", tmp_path)
    assert result.exit_code == 0
    assert f"torn: {path}: offset" in result.output
    assert {each: each.read_bytes() for each in folder.iterdir()} == before


@pytest.mark.parametrize("sid", ["a", "done"])
async def test_damage_is_shown_with_its_place(filled, tmp_path: Path, sid: str) -> None:
    path, extent = place(await filled(), "turn" if sid == "a" else "finish", sid)
    flip(path, extent.end - 1)
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert f"damage: {path}: offset {extent.start}: the checksum is wrong" in result.output
    assert f"session '{sid}' is damaged" in result.output


async def test_frames_that_do_not_fit_together_are_damage(filled, tmp_path: Path, monkeypatch) -> None:
    """Their checksums are right."""
    real = saved.save_turn

    def save(*arguments: object) -> SavedTurn:
        made = real(*arguments)
        return SavedTurn({**made.header, "plan": {**made.header["plan"], "mount": 99}}, made.arrays)

    monkeypatch.setattr("adapter.trajectory.tree.save_turn", save)
    await filled()
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "session 'a' cannot be rebuilt: a saved turn does not fit" in result.output


async def test_a_session_in_the_wrong_slot_is_damage(filled, tmp_path: Path) -> None:
    folder = await filled()
    layout = json.loads((tmp_path / "layout.json").read_text())
    (tmp_path / "layout.json").write_text(json.dumps({**layout, "workers": 16}))
    assert folder.is_dir()
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "lies in slot 0, but slot" in result.output


async def test_cat(filled, encode, tmp_path: Path) -> None:
    await filled()
    assert [(frame["kind"], frame["n"]) for frame in cat(tmp_path, "--sid", "b")] == [
        ("open", 0), ("turn", 1), ("delivered", 2),
    ]  # fmt: skip
    output = [*encode("three"), END]
    (turn,) = cat(tmp_path, "--sid", "b", "--kind", "turn")
    assert turn["arrays"]["output"] == len(output)
    (turn,) = cat("--ids", "--sid", "b", "--kind", "turn", tmp_path)
    assert turn["arrays"]["output"] == output
    assert turn["arrays"]["log_probs"] == [-0.5] * len(output)
    assert json.loads(turn["arrays"]["wire"])["content"][0]["text"] == "three"
    assert {frame["kind"] for frame in cat(tmp_path, "--kind", "finish", "--kind", "drop")} == {"finish", "drop"}


async def test_cat_past_damage(filled, tmp_path: Path) -> None:
    path, extent = place(await filled(), "turn", "a")
    whole = cat(tmp_path)
    flip(path, extent.end - 1)
    result = run("cat", tmp_path)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == len(whole) - 1
    assert f"offset {extent.start}" in result.stderr


async def test_repair_keeps_what_can_be_read(filled, serve, encode, tmp_path: Path) -> None:
    folder = await filled()
    path, extent = place(folder, "turn", "a")
    flip(path, extent.start + 1)  # the length
    damaged = path.read_bytes()
    frames = CliRunner().invoke(cli, ["journal", "cat", str(tmp_path)]).stdout.splitlines()
    result = run("repair", tmp_path)
    assert result.exit_code == 0, result.output
    assert f"lost: offset {extent.start}, {extent.length} bytes (the " in result.output
    assert "frame 1 of session 'a'" in result.output
    assert path.with_name(path.name + ".damaged").read_bytes() == damaged
    assert len(cat(tmp_path)) == len(frames)
    assert run("repair", tmp_path).output == "nothing to repair\n"
    async with serve(FakeEngine([Answer([[*encode("more"), END]])]), journal=tmp_path) as server:
        _, how = await ask(server, [user("x"), said("three"), user("y")], "b")
        assert how == "exact"
        assert (await finish(server, "done"))["turn_count"] == 1
        async with server.http.get("/v1/sessions/a") as response:
            assert response.status == 500, "a turn in the middle is missing"


async def test_a_file_that_is_damaged_again_is_kept_again(filled, tmp_path: Path) -> None:
    folder = await filled()
    for sid in ("a", "b"):
        path, extent = place(folder, "turn", sid)
        flip(path, extent.end - 1)
        assert run("repair", tmp_path).exit_code == 0
    assert len(list(folder.glob("*.damaged"))) == 2


async def test_repair_is_refused_while_a_server_runs(filled, tmp_path: Path) -> None:
    seen: list[Result] = []
    await filled(lambda: seen.append(run("repair", tmp_path)))
    assert seen[0].exit_code == 1
    assert "stop that server first" in seen[0].output


async def test_a_damaged_file_that_was_kept_outlives_a_division(filled, serve, tmp_path: Path) -> None:
    path, extent = place(await filled(), "turn", "a")
    flip(path, extent.end - 1)
    run("repair", tmp_path)
    prepare(tmp_path, 2, Ownership(0, 2).owner, lambda line: None)
    assert len(list((tmp_path / "000002").glob("*.damaged"))) == 1


@pytest.mark.parametrize("command", ["check", "cat", "repair"])
def test_a_folder_without_a_journal(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "none")
    assert result.exit_code == 1
    assert f"there is no journal in {tmp_path / 'none'}" in result.output
    assert not (tmp_path / "none").exists()
