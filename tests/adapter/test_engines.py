"""The engine of a configuration: which endpoints it has, and how it follows the file that names them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from adapter.config import Config, ConfigError
from adapter.configuring import load_config
from adapter.engines import configured_addresses, engine_pool, is_attached, weight_version
from engine.errors import EndpointListError
from tests.engine.fake_endpoints import Reading, greedy, ids_of, request
from tests.engine.fake_triton import fake_triton, serving_all
from tests.engine.test_pool_over_grpc import Served
from tests.support.ports import free_ports
from tests.support.wait import until

OFTEN_S = 0.02


def test_endpoints_are_named_by_flags_the_environment_and_a_file(tmp_path: Path) -> None:
    two = ("10.0.0.1:8001", "10.0.0.2:8001")
    assert load_config({"triton": two}, {}).triton == two
    assert load_config({}, {"ROLLSERVE_TRITON": ",".join(two)}).triton == two
    (tmp_path / "config.toml").write_text('triton = "10.0.0.1:8001"')
    assert load_config({}, {}, tmp_path / "config.toml").triton == two[:1]
    (tmp_path / "endpoints").write_text("\n".join(two))
    listed = load_config({}, {"ROLLSERVE_TRITON_FILE": str(tmp_path / "endpoints")})
    assert (configured_addresses(listed), is_attached(listed)) == (two, True)
    assert not is_attached(Config())


def test_a_list_and_a_file_exclude_one_another() -> None:
    with pytest.raises(ConfigError, match="triton and triton_file are both set"):
        Config(triton=("10.0.0.1:8001",), triton_file=Path("endpoints"))


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(EndpointListError, match="triton has 'gpu', which is not HOST:PORT"):
        configured_addresses(Config(triton=("gpu",)))


async def test_a_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "endpoints"
    servers = [Served(), Served()]
    async with (
        fake_triton(serving_all(servers[0].generate)) as one,
        fake_triton(serving_all(servers[1].generate)) as two,
    ):
        file.write_text(one)
        config = Config(triton_file=file)
        async with engine_pool(config, configured_addresses(config), OFTEN_S) as pool:
            assert weight_version(pool) == 0
            assert [state.address for state in pool.endpoints()] == [one]
            file.write_text(f"{one}\n{two}\n")
            await until(lambda: [state.healthy for state in pool.endpoints()] == [True, True])
            with caplog.at_level(logging.WARNING, "rollserve.engine"):
                file.write_text(f"{two}\nnonsense\n")
                await until(lambda: "endpoints_not_read" in caplog.text)
            assert len(pool.endpoints()) == 2
            file.write_text(two)
            await until(lambda: [state.address for state in pool.endpoints()] == [two])
            assert ids_of(await Reading(pool, request()).task) == greedy(request().prompt_ids, 10)
    assert [len(server.asked) for server in servers] == [0, 1]


async def test_an_engine_that_is_not_there_has_no_weight_version() -> None:
    config = Config(triton=(f"127.0.0.1:{free_ports(1)[0]}",), connect_timeout_s=0.2)
    async with engine_pool(config, config.triton) as pool:
        assert weight_version(pool) is None
        assert "no Triton server answers" in (pool.endpoints()[0].last_error or "")
