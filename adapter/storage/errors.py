"""What can go wrong with files of samples. ``str(error)`` says what to do about it."""

from __future__ import annotations


class StorageError(Exception):
    """A file cannot be read or written as asked; the message names it."""


class MissingExtra(StorageError):
    """A library is not installed that one of the project's extras brings."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}: pip install 'rollserve[{extra}]'")
