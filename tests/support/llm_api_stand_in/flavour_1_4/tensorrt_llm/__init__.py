"""A stand-in for TensorRT-LLM, for tests; see ``tests/support/llm_api_stand_in``. As in the 1.4 line."""

from stand_in_executor import Traits
from stand_in_llm import StandInLlm
from stand_in_results import RequestOutput

from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
__version__ = "1.4.0rc4"


class LLM(StandInLlm):
    traits = Traits(has_penalties=True, has_seeds=True, has_logprobs_mode=True, zero_logprobs_is_sampled=True)

    def generate_async(
        self, inputs, sampling_params=None, lora_request=None, streaming=False, cache_salt=None
    ) -> RequestOutput:
        return self._submit(inputs, sampling_params, lora_request, cache_salt)

    def _check_health(self) -> bool:
        return self._executor is not None and not self._executor.is_shutdown()

    def _collective_rpc(self, method, args=(), kwargs=None, non_block=False, unique_reply_rank=None):
        """Only ``update_weights``, of ``llmapi/rlhf_utils.py``, and only with ray."""
        if self.args.get("orchestrator_type") != "ray":
            raise ValueError(f"Executor type {type(self._executor)} does not support collective RPC.")
        assert method == "update_weights"
        self._executor.call(lambda: self._update(*args))
        return [None]

    def _update(self, handles) -> None:
        if handles is None:
            self._executor.forget_blocks()
            return
        for name, (function, arguments) in next(iter(handles.values())):
            tensor = function(*arguments)
            setattr(self._executor.network, name.removesuffix(".weight"), tensor)
