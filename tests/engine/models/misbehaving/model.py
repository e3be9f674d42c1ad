"""A model that does what the request's ``session`` names: it answers properly, or breaks the contract in one way.

Without a name it knows it behaves: ``request_output_len`` tokens, one per response, ids 0, 1, 2, ..., each with the log prob -0.5.
With the parameter ``engine_log`` it appends one JSON line per event: ``{"id": request id, "event": "start"}``, or ``cancelled``, or
``stopped``.
Where its ``log_probs_streaming`` is ``cumulative`` it speaks the dialect of TensorRT-LLM's C++ model, and misbehaves in it.
"""

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
INVALID_REQUEST_PREFIX = "invalid request: "
EXECUTOR_PREFIX = (
    "Executor failed process requestId 1 due to the following error: Encountered an error when fetching new request: "
)
POLL_S = 0.002
SLOW_S = 0.3
"""Before each token of a slow reply."""


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        log_path = parameters["engine_log"]["string_value"]
        self._log_path = Path(log_path) if log_path else None
        self._cumulative = parameters["log_probs_streaming"]["string_value"] == "cumulative"
        self._replies = {}
        if parameters["fail_to_load"]["string_value"]:
            raise ValueError(parameters["fail_to_load"]["string_value"])

    def execute(self, requests):
        for request in requests:
            if not self._cumulative and pb_utils.get_input_tensor_by_name(request, "control") is not None:
                request.get_response_sender().send(_control_response(), flags=FINAL)
            elif pb_utils.get_input_tensor_by_name(request, "stop") is not None and _input(request, "stop")[0]:
                self._stop(request)
            else:
                kind = CumulativeReply if self._cumulative else Reply
                reply = self._replies[request.request_id()] = kind(request, self._log_path)
                reply.start()

    def _stop(self, request):
        reply = self._replies.get(request.request_id())
        if reply is not None:
            reply.stopped.set()
        request.get_response_sender().send(pb_utils.InferenceResponse([]), flags=FINAL)


class Reply:
    """One request, answered on a thread of its own."""

    refusal = INVALID_REQUEST_PREFIX

    def __init__(self, request, log_path):
        parameters = json.loads(request.parameters())
        self._behaviour = parameters.get("session", "")
        self._id = request.request_id()
        self._log_path = log_path
        self._sender = request.get_response_sender()
        self._count = int(_input(request, "request_output_len")[0])
        self.stopped = threading.Event()

    def start(self):
        self._log("start")
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        act = getattr(self, f"_do_{self._behaviour}", self._do_behave)
        act()

    def _log(self, event):
        if self._log_path:
            with self._log_path.open("a") as log:
                log.write(json.dumps({"id": self._id, "event": event}) + "\n")

    def _send(self, ids, log_probs, final=False, **changes):
        self._sender.send(_response(ids, log_probs, **changes), flags=FINAL if final else 0)

    def _send_tokens(self, count):
        for position in range(count):
            self._send([position], [-0.5])

    def _fail(self, message):
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
        self._sender.send(response, flags=FINAL)

    def _wait_for_cancel(self):
        while not self._sender.is_cancelled():
            if self.stopped.wait(POLL_S):
                self._log("stopped")
                self._send([], [], final=True, finish_reason="cancelled")
                return
        self._log("cancelled")
        self._sender.send(flags=FINAL)

    def _do_behave(self):
        self._send_tokens(self._count - 1)
        self._send([self._count - 1], [-0.5], final=True, finish_reason="length")

    def _do_wrong_count(self):
        self._send([1, 2], [-0.5], final=True)

    def _do_wrong_length(self):
        self._send([1, 2], [-0.5, -0.5], final=True, sequence_length=3)

    def _do_nan(self):
        self._send([1, 2], [-0.5, float("nan")], final=True)

    def _do_infinite(self):
        self._send([1, 2], [-0.5, float("-inf")], final=True)

    def _do_positive(self):
        self._send([1, 2], [-0.5, 0.1], final=True)

    def _do_all_zero(self):
        self._send(list(range(self._count)), [0.0] * self._count, final=True)

    def _do_no_log_probs(self):
        self._send([1, 2], None, final=True)

    def _do_negative(self):
        self._send([1, -1], [-0.5, -0.5], final=True)

    def _do_outside_vocabulary(self):
        self._send([1, 1000], [-0.5, -0.5], final=True)

    def _do_too_many(self):
        self._send_tokens(self._count + 1)
        self._send([], [], final=True)

    def _do_unknown_reason(self):
        self._send([1], [-0.5], final=True, finish_reason="bored")

    def _do_cached_too_many(self):
        self._send([1], [-0.5], final=True, cached_tokens=1000)

    def _do_no_weight_version(self):
        self._send([1], [-0.5], final=True, weight_version=None)

    def _do_empty(self):
        self._send([], [], final=True)

    def _do_lost_log_probs(self):
        self._send_tokens(2)
        self._send([2], [], final=True)

    def _do_invalid(self):
        self._fail(self.refusal + "the prompt is too long")

    def _do_error_first(self):
        self._fail("out of memory")

    def _do_error_later(self):
        self._send_tokens(2)
        self._fail("out of memory")

    def _do_cut(self):
        self._send_tokens(2)
        self._sender.send(flags=FINAL)

    def _do_slow(self):
        for position in range(self._count):
            time.sleep(SLOW_S)
            last = position + 1 == self._count
            self._send([position], [-0.5], final=last, finish_reason="length")

    def _do_silent(self):
        self._wait_for_cancel()

    def _do_stall(self):
        self._send_tokens(2)
        self._wait_for_cancel()

    def _do_crash_first(self):
        os._exit(1)

    def _do_crash_later(self):
        self._send_tokens(2)
        os._exit(1)


class CumulativeReply(Reply):
    """The same as TensorRT-LLM's C++ model would say it: all log probs so far, nothing that it has no output for."""

    refusal = EXECUTOR_PREFIX

    def __init__(self, request, log_path):
        super().__init__(request, log_path)
        self._all_log_probs = []

    def _send(self, ids, log_probs, final=False, sequence_length=None, reused_blocks=0, finish_reason=None):
        self._all_log_probs += log_probs or []
        arrays = {
            **_tokens(ids, None if log_probs is None else self._all_log_probs, sequence_length),
            "kv_cache_reused_blocks": np.array([[reused_blocks]], dtype=np.int32),
        }
        self._sender.send(_of(arrays), flags=FINAL if final else 0)

    def _do_negative_blocks(self):
        self._send([1], [-0.5], final=True, reused_blocks=-1)


def _input(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)


def _tokens(ids, log_probs, sequence_length=None):
    arrays = {
        "output_ids": np.array([[ids]], dtype=np.int32),
        "sequence_length": np.array([[len(ids) if sequence_length is None else sequence_length]], dtype=np.int32),
    }
    if log_probs is not None:
        arrays["output_log_probs"] = np.array([[log_probs]], dtype=np.float32)
    return arrays


def _response(ids, log_probs, finish_reason="stop", sequence_length=None, cached_tokens=0, weight_version=7):
    arrays = {
        **_tokens(ids, log_probs, sequence_length),
        "finish_reason": np.array([[finish_reason.encode()]], dtype=np.object_),
        "cached_tokens": np.array([[cached_tokens]], dtype=np.int32),
    }
    if weight_version is not None:
        arrays["weight_version"] = np.array([[weight_version]], dtype=np.int32)
    return _of(arrays)


def _of(arrays):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])


def _control_response():
    reply = np.array([[b'{"op": "stats", "weight_version": 7}']], dtype=np.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("control_reply", reply)])
