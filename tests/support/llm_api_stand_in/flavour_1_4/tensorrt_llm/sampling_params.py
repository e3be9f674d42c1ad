from dataclasses import dataclass
from enum import StrEnum

from stand_in_params import CommonParams


class LogprobMode(StrEnum):
    RAW = "raw"
    PROCESSED = "processed"


@dataclass(kw_only=True)
class SamplingParams(CommonParams):
    """As in 1.4: ``logprobs`` 0 is the sampled token alone, as a plain float where the format is simple."""

    logprobs_mode: LogprobMode = LogprobMode.RAW
    logprobs_simple_format: bool = False
