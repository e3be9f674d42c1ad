"""New weights in the middle of eight streams, twice, over a real tritonserver: nobody notices, and every token says whose it is.

The judges are the engine's own log and a plain forward pass of each version's weights over what was exported.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from adapter.config import Config
from adapter.journaling import prepared
from adapter.serving import adapter_server, load_models
from engine.verify import verify_samples
from tests.e2e.test_workers import SIDS, opened
from tests.e2e.test_workers import running as running_workers
from tests.support.assets import tokenizer_dir
from tests.support.sse import events_of, read_until
from tests.support.triton import running_triton
from tests.support.wait import until

CONTEXT = 2048
SPECIAL = ("<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SESSIONS, TURNS, TOKENS = 8, 2, 150
VERSIONS = (0, 1, 2)


def save_tokenizer(folder: Path) -> Path:
    """Bytes and the tokens of the template, so that the model can be small."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": SPECIAL[1]}))
    return folder


def save_weights(folder: Path) -> dict[int, Path]:
    """Three sets of random weights of one shape, which say nothing alike."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.6,
        bos_token_id=None,
        eos_token_id=None,
    )
    for version in VERSIONS:
        torch.manual_seed(version)
        LlamaForCausalLM(config).save_pretrained(folder / str(version))
    return {version: folder / str(version) for version in VERSIONS}


@dataclass
class Agent:
    """One session: ``TURNS`` streamed turns of a conversation. ``chunks`` came so far."""

    http: aiohttp.ClientSession
    sid: str
    chunks: int = 0
    replies: list[bytes] = field(default_factory=list)

    async def run(self) -> None:
        history: list[dict[str, Any]] = []
        for turn in range(TURNS):
            history.append({"role": "user", "content": f"Question {turn} of {self.sid}."})
            body = {"messages": history, "max_tokens": TOKENS, "stream": True}
            async with self.http.post(f"/s/{self.sid}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                reply = b""
                async for piece in response.content.iter_any():
                    reply += piece
                    self.chunks += 1
            self.replies.append(reply)
            history.append({"role": "assistant", "content": _text(reply)})


def _text(reply: bytes) -> str:
    events = [data for _, data in events_of(reply)]
    assert events[-1] == "[DONE]", reply[-300:]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in events[:-1] if each["choices"])


@dataclass(frozen=True)
class Served:
    http: aiohttp.ClientSession
    weights: dict[int, Path]
    engine_log: Path

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.http.post(path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status in (200, 201), answer
            return answer

    async def update(self, version: int, **more: Any) -> dict[str, Any]:
        return await self.post("/v1/engine/weights", {"version": version, "path": str(self.weights[version]), **more})

    def logged(self, sid: str) -> list[dict[str, Any]]:
        """What the engine says that it did for one session, in the order in which it was asked."""
        entries = [json.loads(line) for line in self.engine_log.read_text().splitlines() if f'"{sid}"' in line]
        return sorted(entries, key=lambda entry: entry["received_at"])


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    weights = save_weights(folder)
    parameters = {
        "model_dir": str(weights[0]),
        "max_seq_len": str(CONTEXT),
        "num_blocks": "1200",
        "vocab_size": str(VOCAB),
        "coalesce_ms": "5",
        "guided_decoding": "none",
        "engine_log": str(folder / "engine.jsonl"),
    }
    config = Config(port=0, tokenizer=save_tokenizer(folder / "tokenizer"), journal=folder / "journal")
    async with running_triton("transformers", folder / "triton", parameters) as triton:
        with prepared(config):
            async with (
                adapter_server(load_models(config, print), triton.grpc_address) as server,
                aiohttp.ClientSession(server.url) as http,
            ):
                yield Served(http, weights, folder / "engine.jsonl")


async def test_eight_streams_go_on_over_two_updates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(tmp_path) as server:
        agents = [Agent(server.http, f"session-{number}") for number in range(SESSIONS)]
        for agent in agents:
            await server.post("/v1/sessions", {"sid": agent.sid, "sampling": {"pinned": {"min_tokens": TOKENS}}})
        running = [asyncio.create_task(agent.run()) for agent in agents]
        updates = []
        for version, mode in ((1, {"mode": "cut"}), (2, {"mode": "drain", "deadline_s": 0.05})):
            before = [agent.chunks for agent in agents]
            await until(lambda before=before: all(a.chunks > b + 5 for a, b in zip(agents, before, strict=True)))
            updates.append(await server.update(version, **mode))
        await asyncio.gather(*running)
        assert await server.update(2) == updates[-1]
        exports = [await server.post(f"/v1/sessions/{agent.sid}/finish", {}) for agent in agents]
        logs = [server.logged(agent.sid) for agent in agents]
    assert [update["endpoints"][0]["weight_version"] for update in updates] == [1, 2]
    assert [len(agent.replies) for agent in agents] == [TURNS] * SESSIONS
    for log, export in zip(logs, exports, strict=True):
        judge(log, export)
    crossed = sum(len(turn["versions"]) - 1 for export in exports for turn in turns_of(export))
    assert crossed >= SESSIONS, "the updates have to come in the middle of turns"
    samples = [sample for export in exports for sample in export["samples"]]
    report = verify_samples(samples, server.weights[0], weights=server.weights)
    with capsys.disabled():
        paused = ", ".join(f"{update['paused_ms']:g} ms" for update in updates)
        print(f"\n{crossed} times a turn went over an update: {report.trained_tokens} tokens,", end=" ")
        print(f"max |log prob difference| {report.max_difference:.1e}; paused for {paused}")
    assert report.ok, report.failures
    assert set(report.differences.by_version) == {"0", "1", "2"}
    mixed_up = {0: server.weights[1], 1: server.weights[2], 2: server.weights[0]}
    assert verify_samples(samples[:1], server.weights[0], weights=mixed_up).max_difference > 0.1


def turns_of(export: dict[str, Any]) -> list[dict[str, Any]]:
    return [turn for sample in export["samples"] for turn in sample["metadata"]["turns"]]


def judge(log: Sequence[dict[str, Any]], export: dict[str, Any]) -> None:
    """What is trained is what the engine says that it sampled, under the versions that it says, to the token."""
    [sample] = export["samples"]
    assert export["ledger"] == {"sampled": TURNS * TOKENS, "trained": TURNS * TOKENS, "dropped": {}}
    start = len(sample["tokens"]) - sample["response_length"]
    for turn in turns_of(export):
        entries = [entry for entry in log if entry["turn"] == turn["turn_index"]]
        ids, log_probs, versions = joined(entries)
        assert sample["tokens"][start + turn["start"] : start + turn["end"]] == ids
        assert sample["rollout_log_probs"][turn["start"] : turn["end"]] == log_probs
        told = [version for first, end, version in turn["versions"] for _ in range(first, end)]
        assert told == versions
        assert [place for place, _ in turn.get("segments", [])] == (
            [turn["start"] + len(e["prompt_ids"]) - len(entries[0]["prompt_ids"]) for e in entries]
            if len(entries) > 1
            else []
        )


def joined(entries: Sequence[dict[str, Any]]) -> tuple[list[int], list[float], list[int]]:
    """The segments of one turn as one: each goes on where the prompt of the next says that it was cut."""
    ids: list[int] = []
    log_probs: list[float] = []
    versions: list[int] = []
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        taken = len(entry["output_ids"])
        if following is not None:
            taken = len(following["prompt_ids"]) - len(entry["prompt_ids"])
            assert following["prompt_ids"] == entry["prompt_ids"] + entry["output_ids"][:taken]
        ids += entry["output_ids"][:taken]
        log_probs += entry["log_probs"][:taken]
        versions += [version for first, end, version in entry["versions"] for _ in range(first, end)][:taken]
    return ids, log_probs, versions


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_two_workers_and_their_streams_go_over_one_update(tmp_path: Path) -> None:
    """Real processes. The replies say whose they are: under version 1 the script has another one."""
    before, after = " old" * 40, " new" * 40
    script = {
        "timing": {"time_per_output_token_ms": 20},
        "rules": [{"weight_version": 1, "text": after}],
        "default": {"text": before},
    }
    (tmp_path / "script.json").write_text(json.dumps(script))
    parameters = {"script": str(tmp_path / "script.json"), "tokenizer_dir": str(tokenizer_dir("qwen2_5"))}
    async with (
        running_triton("scripted", tmp_path, parameters) as triton,
        running_workers(triton.grpc_address, tmp_path / "journal") as server,
    ):
        await opened(server)
        streams = []
        for sid in SIDS:
            body = {"messages": [user("go")], "max_tokens": 40, "stream": True}
            streams.append(await server.http.post(f"/s/{sid}/v1/chat/completions", json=body))
            await read_until(streams[-1], " old")
        weights = {"version": 1, "mode": "cut"}
        async with server.http.post("/v1/engine/weights", json=weights) as response:
            assert response.status == 200, await response.text()
        for stream in streams:
            rest = await stream.content.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            assert b" new" in rest
        for sid in SIDS:
            async with server.http.post(f"/v1/sessions/{sid}/finish", json={}) as response:
                [sample] = (await response.json())["samples"]
            (_, cut, old), (_, end, new) = sample["metadata"]["turns"][0]["versions"]
            assert (old, new, end) == (0, 1, 40)
            assert sample["response"] == " old" * cut + " new" * (40 - cut)
