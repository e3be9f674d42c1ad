"""The main job, live: two agents on a real model behind a real Triton, then their samples, then a check of every log prob.

The agents are the official SDKs. The first speaks Anthropic Messages, streams its first reply and has a tool call and its result in
its history; the second speaks OpenAI Chat Completions at temperature 0.7 and top_p 0.9. The check is ``engine.verify`` in a
process of its own: a plain forward pass over the exported ids, and two deliberate errors that it must catch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from adapter.config import Config
from adapter.serving import RunningServer, everything
from adapter.storage.export import write_jsonl
from adapter.views import print_explanation, print_sample, print_tree
from engine.assets import demo_model_dir

SERVED_NAME = "demo"
MAX_TOKENS = 48
"""Output tokens per turn: a 135 M parameter model makes 10 to 30 a second on two cores."""

SYSTEM = "You are a helpful assistant. Answer in one short sentence."
WEATHER_TOOL = {
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def run_demo(config: Config, out: Path | None) -> int:
    """Exit status: 0 if the samples were verified. Needs the extras ``embedded`` and ``demo``."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="rollserve-demo-") as temporary:
        folder = out or Path(temporary)
        journal = config.journal or Path(temporary) / "journal"
        config = dataclasses.replace(config, port=0, served_model_name=SERVED_NAME, journal=journal, admin_key=None)
        async with everything(config, lambda line: console.print(f"[dim]{escape(line)}[/dim]")) as server:
            console.print(f"rollserve listens on {server.url}")
            samples = await _play_and_export(console, server)
        write_jsonl(samples, folder / "samples.jsonl")
        if out is not None:
            console.print(f"samples: {folder / 'samples.jsonl'}")
        console.rule("check: recorded log probs against a plain forward pass of the model")
        return await _verify(folder / "samples.jsonl", config.model_dir or demo_model_dir())


async def _play_and_export(console: Console, server: RunningServer) -> list[dict[str, Any]]:
    import aiohttp

    async with aiohttp.ClientSession(server.url) as http:
        sessions = [await _open(http, sid) for sid in ("demo-anthropic", "demo-openai")]
        await _anthropic_agent(console, sessions[0]["base_url"])
        await _openai_agent(console, sessions[1]["openai_base_url"])
        samples: list[dict[str, Any]] = []
        for session in sessions:
            samples += await _finish(console, server, http, session["sid"])
        return samples


async def _open(http: Any, sid: str) -> dict[str, Any]:
    body = {"sid": sid, "sampling": {"default": {"max_tokens": MAX_TOKENS, "seed": 7}}, "metadata": {"task": "demo"}}
    async with http.post("/v1/sessions", json=body, raise_for_status=True) as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def _anthropic_agent(console: Console, base_url: str) -> None:
    from anthropic import AsyncAnthropic

    console.rule("session 1: Anthropic Messages, first reply streamed")
    client = AsyncAnthropic(base_url=base_url, api_key="unused")
    history: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    _say(console, history)
    fixed: dict[str, Any] = {"model": SERVED_NAME, "max_tokens": MAX_TOKENS, "system": SYSTEM, "tools": [WEATHER_TOOL]}
    console.print("[green]assistant[/green] ", end="")
    async with client.messages.stream(messages=history, **fixed) as stream:
        async for text in stream.text_stream:
            console.print(text, end="", markup=False, highlight=False)
        reply = await stream.get_final_message()
    console.print()
    history.append({"role": "assistant", "content": reply.content})
    # A model this small seldom calls a tool by itself, so the agent's history carries a call and its result.
    call = {"type": "tool_use", "id": "toolu_demo", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_demo", "content": "Sunny, 21 degrees Celsius."}
    history += [
        {"role": "user", "content": "How is the weather there?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    _say(console, history[-3:])
    for question in (None, "Should I take an umbrella?"):
        if question is not None:
            history.append({"role": "user", "content": question})
            _say(console, history[-1:])
        reply = await client.messages.create(messages=history, **fixed)
        history.append({"role": "assistant", "content": reply.content})
        console.print(f"[green]assistant[/green] {escape(_blocks_text(reply.content))}")
    await client.close()


async def _openai_agent(console: Console, base_url: str) -> None:
    from openai import AsyncOpenAI

    console.rule("session 2: OpenAI Chat Completions, temperature 0.7, top_p 0.9")
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    history: list[Any] = [{"role": "system", "content": SYSTEM}]
    for question in ("Name a colour.", "Name a fruit of that colour.", "Why do people like it?"):
        history.append({"role": "user", "content": question})
        _say(console, history[-1:])
        reply = await client.chat.completions.create(
            model=SERVED_NAME, messages=history, temperature=0.7, top_p=0.9, max_tokens=MAX_TOKENS
        )
        content = reply.choices[0].message.content or ""
        history.append({"role": "assistant", "content": content})
        console.print(f"[green]assistant[/green] {escape(content)}")
    await client.close()


async def _finish(console: Console, server: RunningServer, http: Any, sid: str) -> list[dict[str, Any]]:
    async with http.get(f"/v1/sessions/{sid}", raise_for_status=True) as response:
        tree = await response.json()
    async with http.get(f"/v1/sessions/{sid}/explain", raise_for_status=True) as response:
        explained = await response.json()
    async with http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}, raise_for_status=True) as response:
        answer = await response.json()
    console.rule(f"session {sid}: its tree and its samples")
    print_tree(console, tree)
    print_explanation(console, explained)
    for sample in answer["samples"]:
        print_sample(console, server.state.services.models.default.renderer.tokenizer, sample)
    console.print(f"ledger: {answer['ledger']}")
    samples: list[dict[str, Any]] = answer["samples"]
    return samples


async def _verify(samples: Path, model_dir: Path) -> int:
    sys.stdout.flush()  # the other process writes to the same place
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.verify", str(samples), "--model", str(model_dir)
    )
    return await process.wait()


def _say(console: Console, messages: list[Any]) -> None:
    for message in messages:
        content = message["content"]
        text = content if isinstance(content, str) else _blocks_text(content)
        console.print(f"[cyan]{message['role']}[/cyan] {escape(text)}")


def _blocks_text(blocks: Any) -> str:
    """Content blocks, as dicts or as the SDK's objects, on one line."""
    return " ".join(_block_text(block if isinstance(block, dict) else block.model_dump()) for block in blocks)


def _block_text(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "tool_use":
            return f"calls {block['name']}({block['input']})"
        case "tool_result":
            return f"result: {block['content']}"
        case kind:
            return f"<{kind}>"
