"""An address that cannot be listened on is told with the settings that name it."""

from __future__ import annotations

import re
import socket

import pytest

from adapter.config import Config, ConfigError
from adapter.http.server import Address
from adapter.serving import WorkerPlace
from adapter.workers.supervisor import workers
from tests.support.engine import FakeEngine
from tests.support.server import serving


def told(address: Address) -> str:
    return re.escape(f"cannot listen on {address.host}:{address.port}: ") + ".*; see --host and --port"


async def test_a_port_that_is_taken(qwen) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address(*taken.getsockname())
        with pytest.raises(ConfigError, match=told(address)):
            async with serving(FakeEngine(), qwen, place=WorkerPlace(addresses=(address,))):
                pass
        with pytest.raises(ConfigError, match=told(address)):
            async with workers(Config(port=address.port, workers=2), ()):
                pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no host"])
async def test_a_host_that_is_not_this_machine(qwen, host: str) -> None:
    address = Address(host, 0)
    with pytest.raises(ConfigError, match=told(address)):
        async with serving(FakeEngine(), qwen, place=WorkerPlace(addresses=(address,))):
            pass


@pytest.mark.parametrize("url", ["", "host", "host:8400", "ftp://host", "http://", "https:///x", "http://["])
def test_a_url_that_is_none(url: str) -> None:
    for setting in ("advertise_url", "otel_endpoint"):
        with pytest.raises(ConfigError, match=f"{setting} is .*; it takes http://HOST or https://HOST"):
            Config(**{setting: url})  # type: ignore[arg-type]
