"""What a session costs: four bytes a token id, four a log prob, each held once."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np

from adapter.trajectory import Head, Trajectory, TurnRecord
from adapter.types import HistoryPolicy, Message

BYTES_PER_TOKEN = 12
NEW, OUTPUT = 400, 100
"""Tokens of a turn's new messages and of its reply."""
PREFIX = 5_000
"""Tokens of a system prompt with tools."""


def kept_bytes(build: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        held = build()
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        del held
        return size
    finally:
        tracemalloc.stop()


def reply_of(number: int) -> Message:
    return {"role": "assistant", "content": f"a{number}", "reasoning_content": "thought"}


def conversation(turns: int) -> list[Message]:
    spoken: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for number in range(turns):
        spoken += [reply_of(number), {"role": "tool", "content": f"t{number}"}]
    return spoken


def play(trajectory: Trajectory, spoken: list[Message], replies: list[Message], rng: np.random.Generator) -> None:
    """A session whose client drops all thinking."""
    for number, reply in enumerate(replies):
        history = spoken[: 2 + 2 * number]
        seen = [{key: each[key] for key in ("role", "content")} for each in history]
        plan = trajectory.match(seen)
        new = rng.integers(0, 1000, PREFIX if number == 0 else NEW, dtype=np.int32)
        output = rng.integers(0, 1000, OUTPUT, dtype=np.int32)
        record = TurnRecord(np.concatenate([plan.known_ids(), new]), output, -np.ones(OUTPUT, np.float32))
        trajectory.commit(plan, record, reply, number=number)


def test_a_session_of_200_turns() -> None:
    turns = 200
    spoken, replies = conversation(turns), [reply_of(number) for number in range(turns)]

    def build() -> Trajectory:
        trajectory = Trajectory(policy=HistoryPolicy.KEEP)
        play(trajectory, spoken, replies, np.random.default_rng(0))
        return trajectory

    size = kept_bytes(build)
    distinct = PREFIX + turns * OUTPUT + (turns - 1) * NEW
    # The tool messages that the trajectory holds are the client's own, a dict of two strings each.
    messages = turns * 232
    assert size - messages <= BYTES_PER_TOKEN * distinct
    trajectory = build()
    (chain,) = trajectory.chains()
    arrays = [
        array
        for node in chain
        if node.generation is not None
        for array in (node.generation.given, node.generation.output, node.generation.log_probs)
        if array is not None
    ]
    assert sum(array.nbytes for array in arrays) == 4 * distinct + 4 * turns * OUTPUT
    assert all(array.base is None for array in arrays), "a view keeps a whole prompt alive"


def test_sub_agents_share_what_their_prompts_begin_with() -> None:
    """100 conversations under one system prompt hold it once."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, 1000, PREFIX, dtype=np.int32)
    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    prompts = [np.concatenate([prefix, rng.integers(0, 1000, 20, dtype=np.int32)]) for _ in range(100)]
    for number, prompt in enumerate(prompts):
        plan = trajectory.match([{"role": "system", "content": "s"}, {"role": "user", "content": f"u{number}"}])
        trajectory.commit(plan, TurnRecord(prompt, [5], [-1.0]), {"role": "assistant", "content": "a"})
    generations = [chain[-1].generation for chain in trajectory.chains()]
    assert sum(each.given.size for each in generations if each is not None) <= PREFIX + 100 * 20
    for prompt, generation in zip(prompts, generations, strict=True):
        assert generation is not None
        assert np.array_equal(generation.prompt_ids(), prompt)
        assert (generation.matched.reason, generation.matched.rendered) == ("new", prompt.size)
    samples = trajectory.explain()
    assert all(each.base_turn is None and each.reused == 0 for each in samples), "shared memory is no shared path"


def test_many_sub_agents_of_one_kind_leave_room_for_another() -> None:
    rng = np.random.default_rng(0)
    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    kinds = [rng.integers(0, 1000, PREFIX, dtype=np.int32) for _ in range(2)]
    for number in range(40):
        kind = number // 20
        prompt = np.concatenate([kinds[kind], rng.integers(0, 1000, 20, dtype=np.int32)])
        spoken = [{"role": "system", "content": f"s{kind}"}, {"role": "user", "content": f"u{number}"}]
        trajectory.commit(
            trajectory.match(spoken), TurnRecord(prompt, [5], [-1.0]), {"role": "assistant", "content": "a"}
        )
    generations = [chain[-1].generation for chain in trajectory.chains()]
    assert sum(each.given.size for each in generations if each is not None) <= 2 * PREFIX + 40 * 20


def test_changing_tools_back_and_forth_copies_no_ids() -> None:
    heads = [Head.of([{"name": "a"}]), Head.of([{"name": "b"}])]
    rng = np.random.default_rng(0)
    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    turns = 40
    spoken = conversation(turns)
    for number in range(turns):
        plan = trajectory.match(spoken[: 2 + 2 * number], head=heads[number % 2])
        opening = rng.integers(0, 1000, 100 if plan.opening else 0, dtype=np.int32)
        prompt = np.concatenate([opening, plan.known_ids(), rng.integers(0, 1000, NEW, dtype=np.int32)])
        record = TurnRecord(prompt, rng.integers(0, 1000, OUTPUT, dtype=np.int32), -np.ones(OUTPUT, np.float32))
        opened = int(opening.size) if plan.splice is not None else 0
        trajectory.commit(plan, record, reply_of(number), opening_tokens=opened)
    seen: dict[int, int] = {}
    for chain in trajectory.chains():
        for node in chain:
            for turn in (node.generation, node.copy):
                for array in () if turn is None else (turn.given, turn.output):
                    seen[array.ctypes.data] = array.nbytes
    assert sum(seen.values()) <= 4 * (turns * (NEW + OUTPUT) + 2 * 100)
