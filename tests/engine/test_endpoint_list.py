"""The list of endpoints: what is one, and what is said of a file that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.endpoint_list import checked_addresses, read_endpoints
from engine.errors import EndpointListError


def test_a_file_has_an_address_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "endpoints"
    file.write_text("# replicas\n10.0.0.1:8001  # rack 1\n\n  gpu-2.example:8001\n[::1]:8001\n10.0.0.1:8001\n")
    assert read_endpoints(file) == ("10.0.0.1:8001", "gpu-2.example:8001", "[::1]:8001")


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "10.0.0.1:",
        ":8001",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "a b:1",
        "http://a:1",
        "::1:8001",
        "a:1/x",
        "a:-1",
    ],
)
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(EndpointListError, match=r"--triton has .*, which is not HOST:PORT"):
        checked_addresses(["10.0.0.1:8001", address], "--triton")


def test_a_file_without_addresses_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "endpoints"
    file.write_text("# none yet\n")
    with pytest.raises(EndpointListError, match="names no endpoint"):
        read_endpoints(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EndpointListError, match=r"cannot read the endpoints from .*missing"):
        read_endpoints(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(EndpointListError, match="cannot read"):
        read_endpoints(tmp_path / "binary")
