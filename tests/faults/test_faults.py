"""Every part of the system is killed at random, under load, for minutes: nothing that a client saw complete is lost or doubled.

``make test-faults`` (``FAULT_SECONDS`` says how long; three minutes by default). What is checked when it is over:

- every reply that an agent saw complete is a turn of its session, once, with the same text and the id that it came with;
- no turn is recorded twice, every session finishes, and every ledger balances;
- what is trained is what the engine's own log says that it sampled; of a reply that an engine's end broke off, and that went on
  when it was back, this is the last part: an engine that was killed has no line of the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.faults.agents import Agent
from tests.faults.system import WORKERS, System
from tests.support.assets import tokenizer_dir
from tests.support.ports import free_ports

SECONDS = float(os.environ.get("FAULT_SECONDS", "180"))
AGENTS = 8
BETWEEN_S = (1.0, 6.0)
"""From the moment when all is well again to the next kill."""
SEED = int(os.environ.get("FAULT_SEED", "0")) or int(time.time())

KILLS = {"worker": 6, "triton": 2, "supervisor": 1, "everything": 1}
"""Parts, and how often each is chosen."""

SCRIPT = {
    "timing": {"time_per_output_token_ms": 8, "jitter": 0.5},
    "rules": [
        {
            "prompt_regex": f"question {number} of [^<]*<.im_end.>\\n<.im_start.>assistant\\n$",
            "text": f"Answer {number}: " + "word " * (5 + 7 * number % 40),
            "end": True,
        }
        for number in range(0, 18, 2)
    ],
    "default": {"text": "An answer.", "end": True},
}


@pytest.mark.faults
@pytest.mark.timeout(SECONDS + 600)
async def test_nothing_is_lost_or_doubled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tokenizer_dir("qwen2_5")
    system = _system(tmp_path, tokenizer)
    await system.start()
    agents = [Agent(f"agent-{number}", system.url) for number in range(AGENTS)]
    over = asyncio.Event()
    working = asyncio.gather(*(agent.run(over) for agent in agents))
    try:
        kills = await _kill_for(system, SECONDS, random.Random(SEED))
        over.set()
        await working
        await system.ready()
        explained = [await agent.explain() for agent in agents]
        exports = [await agent.finish() for agent in agents]
    finally:
        working.cancel()
        await system.stop()
    log = _read_log(tmp_path / "engine.jsonl")
    decode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).decode
    for agent, turns, export in zip(agents, explained, exports, strict=True):
        check_session(agent, turns, export, log.get(agent.sid, []), decode)
    with capsys.disabled():
        print(f"\n{_summary(kills, system, agents, exports)}")


def check_session(
    agent: Agent,
    turns: Sequence[Mapping[str, Any]],
    export: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]],
    decode: Any,
) -> None:
    """Raises: AssertionError."""
    numbers = Counter(turn["number"] for turn in turns)
    assert max(numbers.values(), default=0) <= 1, f"{agent.sid}: a turn stands twice: {numbers}"
    missing = [seen for seen in agent.seen if seen.turn not in numbers]
    assert not missing, f"{agent.sid}: seen complete, but not recorded: {missing}"
    ids = Counter(seen.reply_id for seen in agent.seen)
    assert max(ids.values(), default=0) <= 1, f"{agent.sid}: a reply was given for two requests: {ids}"
    ledger = export["ledger"]
    assert ledger["sampled"] == ledger["trained"] + sum(ledger["dropped"].values())
    outputs, last_parts = _trained_outputs(export), _last_parts(export)
    logged = Counter(tuple(entry["output_ids"]) for entry in log if entry["finish_reason"] in ("stop", "length"))
    for output, count in Counter(last_parts).items():
        assert count <= logged[output], f"{agent.sid}: trained {count} times, but sampled {logged[output]} times"
    for seen in agent.seen:
        index = next(turn["turn_index"] for turn in turns if turn["number"] == seen.turn)
        assert decode(list(outputs[index]), skip_special_tokens=True) == seen.text


def _last_parts(export: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The ids of each trained turn from where it was continued last."""
    found = []
    for sample in export["samples"]:
        response = sample["tokens"][len(sample["tokens"]) - sample["response_length"] :]
        for turn in sample["metadata"]["turns"]:
            if turn["trained"]:
                start = turn.get("segments", [[turn["start"], None]])[-1][0]
                found.append(tuple(response[start : turn["end"]]))
    return found


def _trained_outputs(export: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    """The ids that each turn, by its index, trains."""
    found: dict[int, tuple[int, ...]] = {}
    for sample in export["samples"]:
        response = sample["tokens"][len(sample["tokens"]) - sample["response_length"] :]
        for turn in sample["metadata"]["turns"]:
            if turn["trained"]:
                assert turn["turn_index"] not in found, f"turn {turn['turn_index']} is trained twice"
                found[turn["turn_index"]] = tuple(response[turn["start"] : turn["end"]])
    return found


async def _kill_for(system: System, seconds: float, chance: random.Random) -> Counter[str]:
    kills: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await system.ready()
        await asyncio.sleep(chance.uniform(*BETWEEN_S))
        part = chance.choices(list(KILLS), weights=list(KILLS.values()))[0]
        kills[part] += 1
        match part:
            case "worker":
                system.kill_worker(chance.randrange(WORKERS))
            case "triton":
                system.kill_triton()
            case "supervisor":
                await system.kill_supervisor()
            case _:
                await system.kill_everything()
    return kills


def _system(folder: Path, tokenizer: Path) -> System:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    settings = {"script": script, "tokenizer_dir": tokenizer, "coalesce_ms": 20}
    arguments = [
        "--engine-model",
        "scripted",
        "--tokenizer",
        str(tokenizer),
        "--engine-log",
        str(folder / "engine.jsonl"),
    ]
    for name, value in settings.items():
        arguments += ["--engine-setting", f"{name}={value}"]
    return System(folder, free_ports(1)[0], arguments)


def _read_log(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """By session. The last line may have been cut off by a kill."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in path.read_text().splitlines():
        if line.endswith("}"):
            entry = json.loads(line)
            found.setdefault(entry["session"], []).append(entry)
    return found


def _summary(kills: Counter[str], system: System, agents: Sequence[Agent], exports: Sequence[Mapping[str, Any]]) -> str:
    turns = sum(export["turn_count"] for export in exports)
    continued = sum(
        "segments" in turn for export in exports for sample in export["samples"] for turn in sample["metadata"]["turns"]
    )
    seen = sum(len(agent.seen) for agent in agents)
    tries, broken = sum(agent.tries for agent in agents), sum(agent.broken for agent in agents)
    return (
        f"seed {SEED}, {SECONDS:g} s; killed: {', '.join(f'{part} {count}x' for part, count in kills.items())}; "
        f"{system.cut_bytes} bytes of journal taken away\n"
        f"{len(agents)} sessions finished; {seen} replies seen complete, all recorded once; {turns} turns recorded, "
        f"{continued} of them continued; "
        f"{tries} requests, {broken} of them broken and tried again\n"
        f"0 lost, 0 doubled"
    )
