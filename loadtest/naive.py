"""The yardstick of ``bench_turn``: an adapter of the kind that one writes first.

    python -m loadtest.naive --triton HOST:PORT --tokenizer DIR

Anthropic Messages, streamed, over the same Triton. Each turn it renders and tokenizes the whole conversation with the tokenizer's
own ``apply_chat_template``, reads the reply with ``tritonclient.grpc.aio``, and keeps prompt, output and log probs of each turn as
Python lists, in memory. Nothing is matched, checked, measured or made durable. Prints its address once it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
import uvloop
from aiohttp import web
from transformers import AutoTokenizer

from loadtest.bare_reader import tensor
from loadtest.system import Server, SystemFailed

OUTPUTS = ("output_ids", "output_log_probs")
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
MOST_BODY = 64 * 1024 * 1024


def as_chat(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The request's messages as chat templates take them."""
    chat: list[dict[str, Any]] = [{"role": "system", "content": body["system"]}]
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [{"function": {"name": block["name"], "arguments": block["input"]}} for block in of(blocks, "tool_use")]
        chat += [{"role": "tool", "content": block["content"]} for block in of(blocks, "tool_result")]
        if text or calls:
            chat.append({"role": message["role"], "content": text, **({"tool_calls": calls} if calls else {})})
    return chat


def of(blocks: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [block for block in blocks if block["type"] == kind]


def events_of(text: str, prompt: int, sampled: int) -> list[dict[str, Any]]:
    """The reply as events of a streamed message."""
    before, *calls = CALL.split(text)[:2]
    blocks = [({"type": "text", "text": ""}, {"type": "text_delta", "text": before})]
    for call in map(json.loads, calls):
        block = {"type": "tool_use", "id": "toolu_1", "name": call["name"], "input": {}}
        blocks.append((block, {"type": "input_json_delta", "partial_json": json.dumps(call["arguments"])}))
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": {"input_tokens": prompt}}}]
    for index, (block, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    return [*events, {"type": "message_delta", "usage": {"output_tokens": sampled}}, {"type": "message_stop"}]


class Naive:
    """``sessions``: of each session the turns, each its prompt, output and log probs."""

    def __init__(self, client: triton.InferenceServerClient, folder: Path) -> None:
        self._client = client
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._numbers = itertools.count()
        self.sessions: dict[str, list[tuple[list[int], list[int], list[float]]]] = {}

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = self._tokenizer.apply_chat_template(as_chat(body), tools=body["tools"], add_generation_prompt=True)
        prompt = list(prompt["input_ids"]) if hasattr(prompt, "keys") else prompt
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        output: list[int] = []
        log_probs: list[float] = []
        sid = request.headers["session-id"]
        async for ids, logs in self._sampled(prompt, sid):
            output += ids
            log_probs += logs
        self.sessions.setdefault(sid, []).append((prompt, output, log_probs))
        text = self._tokenizer.decode(output, skip_special_tokens=True)
        for event in events_of(text, len(prompt), len(output)):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write_eof()
        return response

    async def _sampled(self, prompt: list[int], sid: str) -> AsyncIterator[tuple[list[int], list[float]]]:
        """Ids and log probs of each message of the engine."""

        async def requests() -> AsyncIterator[dict[str, Any]]:
            outputs = [triton.InferRequestedOutput(name) for name in OUTPUTS]
            number = next(self._numbers)
            yield {
                "model_name": "tensorrt_llm",
                "inputs": inputs(prompt, self._tokenizer.eos_token_id),
                "outputs": outputs,
                "request_id": f"naive-{number}",
                "parameters": {"session": sid},
            }

        async for result, error in self._client.stream_infer(requests()):
            if error is not None:
                raise error
            yield result.as_numpy("output_ids").ravel().tolist(), result.as_numpy("output_log_probs").ravel().tolist()
            if result.get_response().parameters["triton_final_response"].bool_param:
                return


def inputs(prompt: list[int], end_id: int) -> list[triton.InferInput]:
    """The tensors of one streamed request (the names are of TensorRT-LLM's Triton model)."""
    return [
        tensor("input_ids", "INT32", np.array(prompt, np.int32)),
        tensor("input_lengths", "INT32", np.array([len(prompt)], np.int32)),
        tensor("request_output_len", "INT32", np.array([4096], np.int32)),
        tensor("end_id", "INT32", np.array([end_id], np.int32)),
        tensor("return_log_probs", "BOOL", np.array([True])),
        tensor("streaming", "BOOL", np.array([True])),
    ]


async def serve(address: str, folder: Path) -> None:
    async with triton.InferenceServerClient(address) as client:
        app = web.Application(client_max_size=MOST_BODY)
        app.router.add_post("/v1/messages", Naive(client, folder).messages)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        print(f"http://{host}:{port}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


@asynccontextmanager
async def running(address: str, tokenizer: Path, log: Path) -> AsyncIterator[Server]:
    """This program, in front of the Triton at ``address``. Raises: SystemFailed."""
    command = [sys.executable, "-m", "loadtest.naive", "--triton", address, "--tokenizer", str(tokenizer)]
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise SystemFailed(f"the naive adapter did not start; see {log}")
        yield Server(url, process.pid, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", required=True, help="HOST:PORT of its gRPC port.")
    parser.add_argument("--tokenizer", type=Path, required=True, help="Folder with tokenizer.json and the template.")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.triton, arguments.tokenizer))
