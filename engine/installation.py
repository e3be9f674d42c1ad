"""Find a tritonserver on this machine, and say clearly what is missing when there is none that can run.

Three kinds, in this order: a path that the caller names; the one inside the ``nvidia-pytriton`` wheel of this
interpreter; a ``tritonserver`` on ``PATH`` (NVIDIA's container). The first and the last bring their backends and
libraries with them.

The wheel's server needs help, all of it found out by running it:

- its Python backend lacks the stub process of a particular Python; the wheel has one for each version, without the run
  bit;
- the stub must load the ``libpython`` of *this* interpreter (another one fails at the first extension module, with an
  undefined symbol), and the wheel's own libraries, in this order on ``LD_LIBRARY_PATH``;
- the stub finds the packages of this environment through the ``python3`` on ``PATH``; it ignores ``PYTHONPATH``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import LaunchFailed

WHEEL_GLIBC = (2, 35)
"""The wheel is tagged manylinux_2_35 (nvidia-pytriton 0.7.0)."""


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A tritonserver and what it needs to run models of this interpreter."""

    binary: Path
    python_backend: Path | None = None
    """The backend's files without a stub; ``None`` where the installation's own backends are complete."""
    stub: Path | None = None
    library_dirs: tuple[Path, ...] = ()
    """In the order in which ``LD_LIBRARY_PATH`` must name them."""

    def make_backend_directory(self, target: Path) -> Path | None:
        """Assemble the folder for ``--backend-directory`` in ``target``; ``None`` where the server's own is right."""
        if self.python_backend is None or self.stub is None:
            return None
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.python_backend, target / "python", ignore=shutil.ignore_patterns("__pycache__"))
        stub = target / "python" / "triton_python_backend_stub"
        shutil.copyfile(self.stub, stub)
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return target

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the library and program paths that this server needs."""
        environment = dict(base)
        if self.library_dirs:
            _put_first(environment, "LD_LIBRARY_PATH", [str(path) for path in self.library_dirs])
            _put_first(environment, "PATH", [str(Path(sys.executable).parent)])
        return environment


def find_installation(explicit: Path | None = None) -> TritonInstallation:
    """The tritonserver to run.

    Raises: LaunchFailed, naming what is missing and the line that installs it.
    """
    if explicit is not None:
        if not os.access(explicit, os.X_OK) or explicit.is_dir():
            raise LaunchFailed(f"{explicit} is not an executable tritonserver")
        return TritonInstallation(explicit)
    wheel = _wheel_folder()
    if wheel is not None:
        return _wheel_installation(wheel)
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return TritonInstallation(Path(on_path))
    raise LaunchFailed(
        "no tritonserver: neither the nvidia-pytriton wheel nor a tritonserver on PATH. "
        f"Install the wheel with: {sys.executable} -m pip install 'rollserve[embedded]' "
        "(x86-64 Linux, glibc 2.35 or later, Python 3.11 or 3.12), or attach to a running server"
    )


def _wheel_folder() -> Path | None:
    """``pytriton/tritonserver`` of the wheel. Importing pytriton would pull in much; its folder is enough."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "tritonserver"
    return folder if (folder / "bin" / "tritonserver").is_file() else None


def _wheel_installation(wheel: Path) -> TritonInstallation:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise LaunchFailed(f"the nvidia-pytriton wheel has no stub for Python {version}; use Python 3.11 or 3.12")
    _check_glibc()
    _check_python_on_path()
    binary = wheel / "bin" / "tritonserver"
    if not os.access(binary, os.X_OK):
        raise LaunchFailed(f"{binary} is not executable; run: chmod +x {binary}")
    libraries = wheel.parent.parent / "nvidia_pytriton.libs"
    return TritonInstallation(binary, wheel / "backends" / "python", stub, (libpython_folder(version), libraries))


def _check_glibc() -> None:
    name, text = platform.libc_ver()
    found = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if name != "glibc" or found < WHEEL_GLIBC:
        needed = ".".join(map(str, WHEEL_GLIBC))
        raise LaunchFailed(
            f"this machine's C library is {name or 'unknown'} {text}; the Triton wheel needs glibc {needed} or later "
            "(Ubuntu 22.04, Debian 12, RHEL 10). Run rollserve in a newer container, or attach to a running server"
        )


def _check_python_on_path() -> None:
    """The stub takes the ``python3`` beside this interpreter for its own; it must be this interpreter."""
    candidate = Path(sys.executable).parent / "python3"
    if not candidate.exists() or candidate.resolve() != Path(sys.executable).resolve():
        raise LaunchFailed(
            f"{candidate} is not this interpreter ({sys.executable}), so Triton's Python backend would look for its "
            f"packages in the wrong place. Install rollserve in a virtual environment: {sys.executable} -m venv .venv"
        )


def libpython_folder(version: str) -> Path:
    """Where this interpreter has its shared library. Relocatable ones record the ``LIBDIR`` of their build machine."""
    name = f"libpython{version}.so.1.0"
    libdir = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in (Path(sys.base_prefix) / "lib", libdir, libdir / multiarch):
        if (folder / name).exists():
            return folder
    raise LaunchFailed(
        f"Triton's Python backend needs {name}, which this interpreter ({sys.executable}) does not have in {libdir}. "
        f"Debian and Ubuntu: apt-get install libpython{version}. "
        f"pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {version}"
    )


def _put_first(environment: dict[str, str], name: str, entries: list[str]) -> None:
    rest = environment.get(name)
    environment[name] = os.pathsep.join([*entries, rest] if rest else entries)
