"""A server's journal from start to stop: the folder is claimed, the key of handles read or made, what is there recovered.

``claim`` in it is held by the server that uses the folder, ``claim-SLOT`` by the worker that uses a slot, so that nobody else does.
``handles.key`` are 32 random bytes: handles that clients hold are valid as long as they stay. For the rest see
``adapter.storage.layout``.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapter.config import Config
from adapter.handles import KEY_BYTES, Handles
from adapter.logs import event
from adapter.ownership import Ownership
from adapter.recorder import JournalRecorder, Recorder, Unrecorded
from adapter.storage.atomic import write_atomically
from adapter.storage.compaction import Compactor
from adapter.storage.errors import StorageError
from adapter.storage.frames import FileHeader
from adapter.storage.journal import Journal
from adapter.storage.layout import Layout, prepare, read_layout
from adapter.storage.recovery import Recovered, recover
from adapter.types import Durability

logger = logging.getLogger("rollserve.journal")


PREDECESSOR_S = 15.0
"""More than a worker takes to end once its supervisor is gone."""


class FolderInUse(StorageError):
    """Another process has the journal, or this slot of it: ``owner``."""

    def __init__(self, folder: Path, pid: str) -> None:
        self.owner = f"process {pid or 'unknown'}"
        super().__init__(f"{folder} is in use by {self.owner}; give this server a folder of its own with --journal")


@dataclass(frozen=True, slots=True)
class Recording:
    """What a server records with, and what was recorded before."""

    recorder: Recorder
    recovered: Recovered | None
    handles: Handles


def journal_folder(config: Config) -> Path:
    """Where the journal is, if there is one."""
    if config.journal is not None:
        return config.journal
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "rollserve" / "journal"


@contextmanager
def prepared(config: Config) -> Iterator[None]:
    """The journal's folder, claimed for this server and laid out for its workers. Raises: StorageError."""
    if config.durability is Durability.NONE:
        yield
        return
    folder = journal_folder(config)
    with _claimed(folder, "claim"):
        prepare(folder, config.workers, Ownership(0, config.workers).owner, logger.info)
        _key(folder / "handles.key")
        yield


@contextmanager
def claimed_whole(folder: Path, layout: Layout) -> Iterator[None]:
    """A journal with all its slots, while no server uses it. Raises: StorageError."""
    with ExitStack() as stack:
        try:
            for name in ("claim", *(f"claim-{slot:02d}" for slot in range(layout.workers))):
                stack.enter_context(_claimed(folder, name))
        except FolderInUse as error:
            raise StorageError(f"{error.owner} uses {folder}; stop that server first") from error
        yield


@asynccontextmanager
async def recording(config: Config, slot: int = 0) -> AsyncIterator[Recording]:
    """Recover what the slot's journal holds and record behind it; the folder is ``prepared``. Raises: StorageError."""
    if config.durability is Durability.NONE:
        yield Recording(Unrecorded(), None, Handles())
        return
    folder = journal_folder(config)
    async with _slot_claimed(folder, slot):
        layout = read_layout(folder)
        if layout is None:
            raise StorageError(f"{folder} has no journal; it was removed while the server started")
        handles = Handles(_key(folder / "handles.key"))
        folder = layout.segments(folder)
        found = await asyncio.to_thread(recover, folder, slot)
        for report in found.reports:
            event(logger, logging.WARNING, "journal", report=report)
        event(logger, logging.INFO, "journal_read", folder=str(folder), sessions=len(list(found.catalog)))
        journal = Journal(
            folder,
            FileHeader(slot, found.epoch),
            found.next_segment,
            durability=config.durability,
            segment_bytes=config.journal_segment_bytes,
        )
        compactor = Compactor(journal, found.catalog, str(found.damages[0]) if found.damages else None)
        compactor.consider()
        try:
            yield Recording(JournalRecorder(journal, found.catalog, found.counts, compactor), found, handles)
        finally:
            await compactor.close()
            journal.close()


@asynccontextmanager
async def _slot_claimed(folder: Path, slot: int) -> AsyncIterator[None]:
    """A worker whose supervisor was killed takes a while to end; the next one of its slot waits. Raises: StorageError."""
    deadline = asyncio.get_running_loop().time() + PREDECESSOR_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(_claimed(folder, f"claim-{slot:02d}"))
                break
            except FolderInUse:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(PREDECESSOR_S / 50)
        yield


@contextmanager
def _claimed(folder: Path, name: str) -> Iterator[None]:
    """Raises: StorageError; FolderInUse, if another process has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        claim = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot use {folder} for the journal: {error.strerror or error}; see --journal") from error
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(claim, 0)
        os.write(claim, f"{os.getpid()}\n".encode())
        yield
    except BlockingIOError as error:
        raise FolderInUse(folder, os.read(claim, 32).decode().strip()) from error
    finally:
        os.close(claim)


def _key(path: Path) -> bytes:
    """Raises: StorageError."""
    try:
        if not path.exists():
            key = os.urandom(KEY_BYTES)
            write_atomically(path, lambda file: file.write(key))
            path.chmod(0o600)
        key = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read or make {path}: {error.strerror or error}") from error
    if len(key) != KEY_BYTES:
        raise StorageError(
            f"{path} has {len(key)} bytes, not {KEY_BYTES}; handles that clients hold would not be recognised"
        )
    return key
