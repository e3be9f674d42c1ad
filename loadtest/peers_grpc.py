"""An engine that speaks vLLM's gRPC protocol, for the gateway ``smg``: it answers every prompt at once with the same reply.

    PEERS/bin/python loadtest/peers_grpc.py --ids FILE --tokenizer DIR

It runs on the interpreter that ``smg`` is installed for, with nothing but the package ``smg-grpc-proto`` (its
``vllm_engine.proto``). FILE has the ids of the reply's messages, a JSON list for
each. A text and a call have to be in messages apart: of one that holds both, smg 1.13.0 gives its client the call alone. Prints its
address once it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as messages
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as services

CONTEXT = 262_144
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Engine(services.VllmEngineServicer):
    """``parts`` are the reply, the last id of them the end token."""

    def __init__(self, parts: list[list[int]], tokenizer: Path) -> None:
        self._parts, self._tokenizer = parts, str(tokenizer)
        self._ids = [id_ for part in parts for id_ in part]

    async def Generate(self, request: Any, _: Any) -> AsyncIterator[Any]:
        """All at once, as an engine sends it that is faster than its reader."""
        usage = {"prompt_tokens": len(request.tokenized.input_ids), "completion_tokens": len(self._ids)}
        for part in self._parts if request.stream else ():
            yield messages.GenerateResponse(chunk=messages.GenerateStreamChunk(token_ids=part, **usage))
        ended = messages.GenerateComplete(
            output_ids=self._ids, finish_reason="stop", matched_token_id=self._ids[-1], **usage
        )
        yield messages.GenerateResponse(complete=ended)

    async def HealthCheck(self, _: Any, __: Any) -> Any:
        return messages.HealthCheckResponse(healthy=True)

    async def GetModelInfo(self, _: Any, __: Any) -> Any:
        return messages.GetModelInfoResponse(
            model_path=self._tokenizer,
            tokenizer_path=self._tokenizer,
            served_model_name="rollserve",
            is_generation=True,
            max_context_length=CONTEXT,
            max_req_input_len=CONTEXT,
            eos_token_ids=self._ids[-1:],
        )

    async def GetServerInfo(self, _: Any, __: Any) -> Any:
        return messages.GetServerInfoResponse(server_type="vllm-grpc", data_parallel_size=1)

    async def GetLoads(self, _: Any, __: Any) -> Any:
        return messages.GetLoadsResponse()

    async def Abort(self, _: Any, __: Any) -> Any:
        return messages.AbortResponse()


async def serve(parts: list[list[int]], tokenizer: Path) -> None:
    server = grpc.aio.server(options=NO_LIMIT)
    services.add_VllmEngineServicer_to_server(Engine(parts, tokenizer), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"grpc://127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=Path, required=True, help="JSON file with the ids.")
    parser.add_argument("--tokenizer", type=Path, required=True, help="Folder with tokenizer.json and the template.")
    arguments = parser.parse_args()
    asyncio.run(serve(json.loads(arguments.ids.read_text()), arguments.tokenizer))
