"""gRPC channels to Triton, and the protobuf messages and stubs that ``tritonclient`` ships.

Its own aio client is not used: it drops the request id on errors and cannot cancel one request of a shared stream.

Generations and control requests do not come over such a channel (``engine.connection``). For what does,
``GRPC_EXPERIMENTS=-event_engine_client`` makes a message 40% cheaper (measured with grpcio 1.85), but only if it is in the
environment before ``grpc`` is first imported. That is for a program's entry point to do, not for a library.
"""

from __future__ import annotations

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc

__all__ = ["messages", "open_channel", "open_stub"]

_MAX_MESSAGE_BYTES = 2**31 - 1
"""What Triton's server sets for itself; gRPC's default of 4 MB for received messages is a long prompt's log probs."""

_OPTIONS = (
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # Equal channels of a process would share one TCP connection, and its one write at a time.
    ("grpc.use_local_subchannel_pool", 1),
    # An http_proxy of the environment is for the internet, not for an engine beside us.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A plain-text channel to ``host:port``; it belongs to the running event loop."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def open_stub(channel: grpc.aio.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)
