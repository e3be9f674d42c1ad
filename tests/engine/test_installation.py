"""Finding a tritonserver, and the message for each thing that can be missing."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import LaunchFailed
from engine.installation import TritonInstallation, find_installation


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_wheel_of_this_environment_is_complete() -> None:
    found = find_installation()
    assert found.binary.name == "tritonserver"
    assert os.access(found.binary, os.X_OK)
    libpython = f"libpython3.{sys.version_info.minor}.so.1.0"
    assert (found.library_dirs[0] / libpython).exists()
    assert list(found.library_dirs[1].glob("libtritonserver*"))


def test_the_backend_folder_has_a_stub_that_can_be_run(tmp_path: Path) -> None:
    folder = find_installation().make_backend_directory(tmp_path / "backends")
    assert folder is not None
    assert (folder / "python" / "libtriton_python.so").is_file()
    assert os.access(folder / "python" / "triton_python_backend_stub", os.X_OK)


def test_the_environment_puts_our_libraries_and_our_python_first() -> None:
    found = TritonInstallation(Path("/t"), Path("/b"), Path("/s"), (Path("/one"), Path("/two")))
    environment = found.environment({"LD_LIBRARY_PATH": "/old", "PATH": "/usr/bin", "HOME": "/h"})
    assert environment == {
        "LD_LIBRARY_PATH": "/one:/two:/old",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin",
        "HOME": "/h",
    }
    assert found.environment({})["LD_LIBRARY_PATH"] == "/one:/two"


def test_an_explicit_server_is_taken_as_it_is(tmp_path: Path) -> None:
    binary = executable(tmp_path / "tritonserver")
    found = find_installation(binary)
    assert found == TritonInstallation(binary)
    assert found.make_backend_directory(tmp_path / "backends") is None
    assert found.environment({"PATH": "/usr/bin"}) == {"PATH": "/usr/bin"}


def test_an_explicit_server_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path / "missing", tmp_path):
        with pytest.raises(LaunchFailed, match="not an executable"):
            find_installation(wrong)


@pytest.mark.usefixtures("no_wheel")
def test_without_the_wheel_the_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = executable(tmp_path / "tritonserver")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_installation() == TritonInstallation(binary)


@pytest.mark.usefixtures("no_wheel")
def test_without_any_server_the_line_that_installs_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchFailed, match=r"-m pip install 'rollserve\[embedded\]'"):
        find_installation()


@pytest.mark.parametrize("version", [("glibc", "2.31"), ("", "")])
def test_an_old_c_library_is_named(version: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: version)
    with pytest.raises(LaunchFailed, match=r"needs glibc 2\.35"):
        find_installation()


def test_a_missing_libpython_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, Any] = {"LIBDIR": str(tmp_path), "MULTIARCH": "x86_64-linux-gnu"}
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    version = f"3.{sys.version_info.minor}"
    with pytest.raises(LaunchFailed, match=rf"apt-get install libpython{version}"):
        find_installation()


def test_libpython_is_found_in_debians_multiarch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "x86_64-linux-gnu"
    folder.mkdir()
    (folder / f"libpython3.{sys.version_info.minor}.so.1.0").touch()
    variables: dict[str, Any] = {"LIBDIR": str(tmp_path), "MULTIARCH": "x86_64-linux-gnu"}
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "none"))
    assert find_installation().library_dirs[0] == folder


def test_another_python3_beside_the_interpreter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's python3.12 beside a python3 that is 3.11: the stub would look for its packages there."""
    executable(tmp_path / "python3")
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python3.12")))
    with pytest.raises(LaunchFailed, match="is not this interpreter"):
        find_installation()


def test_a_python_without_a_stub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(major=3, minor=14))
    with pytest.raises(LaunchFailed, match=r"no stub for Python 3\.14"):
        find_installation()
