"""The yardstick of ``bench_tokens``: a client that does nothing but read Triton's streams, as ``tritonclient`` documents it.

    python -m loadtest.bare_reader ADDRESS STREAMS SECONDS

``tritonclient.grpc.aio``, a stream per request, ids and log probs of each message by ``as_numpy``. Prints, as JSON, the CPU time of
this process, and the messages and tokens that it read, in SECONDS behind a warm-up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
import uvloop

WARM_UP_S = 1.5
PROMPT = 200
"""Tokens."""
OUTPUTS = ("output_ids", "output_log_probs")


@dataclass(slots=True)
class Read:
    """Counts of a reader."""

    cpu_s: float = 0.0
    messages: int = 0
    tokens: int = 0


def inputs(seed: int) -> list[triton.InferInput]:
    """The tensors of one streamed request (the names are of TensorRT-LLM's Triton model)."""
    return [
        tensor("input_ids", "INT32", np.arange(100, 100 + PROMPT, dtype=np.int32)),
        tensor("input_lengths", "INT32", np.array([PROMPT], np.int32)),
        tensor("request_output_len", "INT32", np.array([100_000], np.int32)),
        tensor("seed", "UINT64", np.array([seed], np.uint64)),
        tensor("return_log_probs", "BOOL", np.array([True])),
        tensor("streaming", "BOOL", np.array([True])),
    ]


def tensor(name: str, dtype: str, values: np.ndarray[Any, Any]) -> triton.InferInput:
    """An input with its batch dimension of 1."""
    tensor = triton.InferInput(name, [1, values.size], dtype)
    tensor.set_data_from_numpy(values.reshape(1, -1))
    return tensor


async def read(client: triton.InferenceServerClient, number: int, seen: Read) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        outputs = [triton.InferRequestedOutput(name) for name in OUTPUTS]
        yield {
            "model_name": "tensorrt_llm",
            "inputs": inputs(number),
            "outputs": outputs,
            "request_id": f"bare-{number}",
        }

    async for result, error in client.stream_infer(requests()):
        if error is not None:
            raise error
        ids, log_probs = result.as_numpy("output_ids"), result.as_numpy("output_log_probs")
        assert ids.size == log_probs.size
        seen.messages += 1
        seen.tokens += ids.size


async def main(address: str, streams: int, seconds: float) -> Read:
    seen = Read()
    async with triton.InferenceServerClient(address) as client:
        reading = [asyncio.create_task(read(client, number, seen)) for number in range(streams)]
        await asyncio.sleep(WARM_UP_S)
        cpu_s, messages, tokens = time.process_time(), seen.messages, seen.tokens
        await asyncio.sleep(seconds)
        found = Read(time.process_time() - cpu_s, seen.messages - messages, seen.tokens - tokens)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return found


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))))
