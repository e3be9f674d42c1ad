from dataclasses import dataclass

from stand_in_params import CommonParams


@dataclass(kw_only=True)
class SamplingParams(CommonParams):
    """As in 1.2: ``logprobs`` 0 is none."""
