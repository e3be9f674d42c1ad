"""The comparison with other gateways, as far as it can be tried without them: the HTTP engine, the turns compared, the table."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from loadtest import peers, peers_http
from loadtest.agent import Agent, Writer
from loadtest.bench_turn import Turn
from tests.support.assets import demo_model_dir


async def test_the_http_engine_answers_an_agent_with_a_text_and_a_call() -> None:
    writer = Writer(demo_model_dir())
    async with peers_http.instant(writer.reply()) as url, aiohttp.ClientSession(url) as http:
        agent = Agent(http, "agent", writer, system_tokens=10)
        await agent.turn(agent.request())
        await agent.turn(agent.request())
    text, call = agent.messages[-2]["content"]
    assert text["text"] == writer.reply().partition("<tool_call>")[0]
    assert call["input"] == {"path": "src/module_1.py", "pattern": "def"}


def test_the_reply_in_ids_is_the_text_the_call_and_the_end() -> None:
    writer = Writer(demo_model_dir())
    text, call = peers.reply_ids(demo_model_dir(), writer)
    tokenizer = peers.Tokenizer.from_file(str(demo_model_dir() / "tokenizer.json"))
    written = tokenizer.decode(text, skip_special_tokens=False) + tokenizer.decode(call[:-1], skip_special_tokens=False)
    assert written == writer.reply()


def test_the_same_turns_of_each_gateway_are_compared_and_the_first_never_is() -> None:
    own = [Turn(9_000, 100.0, 0.0), *(Turn(9_000 + 900 * turn, 2.0, 0.0) for turn in range(1, 41))]
    other = [Turn(0, 500.0, 0.0), *(Turn(0, float(turn), 0.0) for turn in range(1, 41))]
    assert peers.costs({"rollserve": own, "smg grpc": other}, (10_000, 27_000)) == {
        10_000: {"rollserve": 2.0, "smg grpc": 5.0},
        27_000: {"rollserve": 2.0, "smg grpc": 20.0},
    }


def test_ratios_have_a_goal_where_the_work_is_the_same() -> None:
    row = {"rollserve": 3.0, "naive": 60.0, "smg grpc": 6.0, "smg http": 1.5}
    figures = {figure.name: figure for figure in peers.figures_of({64_000: row})}
    assert figures["rollserve / smg grpc at 64k"].value == 0.5
    assert figures["rollserve / smg grpc at 64k"].met is True
    assert figures["rollserve / smg http at 64k"].met is None
    assert peers.beside({64_000: row}).splitlines()[2:] == [
        "| rollserve | 3.0 |",
        "| naive | 60.0 (20.0x) |",
        "| smg grpc | 6.0 (2.0x) |",
        "| smg http | 1.5 (0.5x) |",
    ]


def test_without_smg_it_says_so_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--peers", str(tmp_path), "--store", str(tmp_path / "store")]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "smg is not installed in" in told.err and "make bench-peers" in told.err
    assert not (tmp_path / "store").exists()
