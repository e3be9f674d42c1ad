"""A stand-in for TensorRT-LLM, for tests; see ``tests/support/llm_api_stand_in``. As in the 1.2 line, without ``cache_salt``,
``_check_health`` and ``_collective_rpc``, so that every fallback is tried."""

from stand_in_executor import Traits
from stand_in_llm import StandInLlm
from stand_in_results import RequestOutput

from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
__version__ = "1.2.1"


class LLM(StandInLlm):
    traits = Traits(has_penalties=False, has_seeds=False, has_logprobs_mode=False, zero_logprobs_is_sampled=False)

    def generate_async(self, inputs, sampling_params=None, lora_request=None, streaming=False) -> RequestOutput:
        return self._submit(inputs, sampling_params, lora_request, None)
