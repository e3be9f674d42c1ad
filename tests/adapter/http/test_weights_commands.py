"""``rollserve engine``: what it sends, and what it tells of the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from adapter.cli import cli
from tests.adapter.http.test_engine_control import REFUSED, engine


async def told(url: str, *arguments: str) -> tuple[int, str]:
    """Exit status and output. The terminal is wide enough for everything."""
    environment = {"COLUMNS": "200", "ROLLSERVE_ADMIN_KEY": None}
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["engine", *arguments, "--url", url], env=environment)
    return result.exit_code, result.output


async def state(url: str) -> Any:
    return json.loads((await told(url, "status", "--json"))[1])


async def test_a_pause_and_its_end(qwen) -> None:
    async with engine(qwen) as (server, fleet):
        status, output = await told(server.url, "pause", "--mode", "cut", "--lease", "50")
        assert status == 0, output
        assert output.startswith("paused, for ")
        assert (await state(server.url))["lease_left_s"] <= 50
        status, output = await told(server.url, "resume")
        assert (status, output.startswith("not paused")) == (0, True)
        assert fleet[0].address in output
        status, output = await told(server.url, "pause", "--lease", "2")
        assert (status, "lease_s must be more than deadline_s, which is 30" in output) == (1, True)


@pytest.mark.parametrize("option", ["--deadline", "--lease"])
@pytest.mark.parametrize("number", ["nan", "inf", "1e999", "-1", "soon"])
async def test_what_is_no_number_of_seconds_is_refused_by_name(option: str, number: str) -> None:
    status, output = await told("http://127.0.0.1:9", "pause", option, number)
    assert (status, f"Invalid value for '{option}'" in output) == (2, True)


async def test_new_weights(qwen) -> None:
    async with engine(qwen, servers=2) as (server, fleet):
        fleet[1].refusal = REFUSED
        status, output = await told(server.url, "weights", "2", "--path", "/w/2", "--mode", "drain", "--deadline", "1")
        assert status == 0, output
        assert "m: weights 2" in output
        assert "holds no *.safetensors file" in output
        assert "on hold for " in output
        models = (await state(server.url))["models"]
        assert (models[0]["weight_version"], models[0]["path"]) == (2, "/w/2")
        status, output = await told(server.url, "status")
        assert "no (" in output
        assert "m: weights 2 (/w/2)" in output


async def test_weights_that_no_endpoint_takes(qwen) -> None:
    async with engine(qwen) as (server, fleet):
        fleet[0].refusal = REFUSED
        status, output = await told(server.url, "weights", "2", "--path", "/w/2", "--mode", "cut")
        assert status == 1
        assert "502 no endpoint took the new weights, and the old ones go on" in output
