"""Sends the prompt back, one token per response, each with the log prob -0.5."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().reshape(-1)
            for position, token in enumerate(ids):
                final = position == len(ids) - 1
                sender.send(_response(token), flags=FINAL if final else 0)
        return


def _response(token):
    tensor = pb_utils.Tensor
    return pb_utils.InferenceResponse(
        [
            tensor("output_ids", np.array([[[token]]], dtype=np.int32)),
            tensor("sequence_length", np.array([[1]], dtype=np.int32)),
            tensor("output_log_probs", np.array([[[-0.5]]], dtype=np.float32)),
            tensor("finish_reason", np.array([[b"stop"]], dtype=np.object_)),
            tensor("cached_tokens", np.array([[0]], dtype=np.int32)),
            tensor("weight_version", np.array([[0]], dtype=np.int32)),
        ]
    )
