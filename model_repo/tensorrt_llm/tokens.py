"""The new tokens of one update of a ``RequestOutput`` (``tensorrt_llm/executor/result.py``).

``CompletionOutput.token_ids`` and ``logprobs`` are all so far. We keep our own count of what was read, not ``token_ids_diff``: it
stays right where updates were joined. An element of ``logprobs`` is a float (``logprobs_simple_format``), or a dict from token to
``Logprob``, which holds the best tokens and the sampled one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

LARGEST_ROUNDING = 1e-3
"""A log prob so little above 0 is 0: the sum of a softmax in bfloat16."""


class EngineFault(RuntimeError):
    """The engine did not do what it was asked; the message says what."""


def new_tokens(output: Any, seen: int) -> Iterator[tuple[int, float]]:
    """Tokens of the ``CompletionOutput`` from the index ``seen`` on, with their log probs.

    Raises: EngineFault, if a log prob is missing or is none.
    """
    ids = output.token_ids[seen:]
    if not ids:
        return
    log_probs = (output.logprobs or [])[seen:]
    # There may be more: the worker adds to the list before the token is read (result.py). Fewer means that they are off.
    if len(log_probs) < len(ids):
        raise EngineFault(f"TensorRT-LLM gave {len(log_probs)} log probs for {len(ids)} new tokens")
    for token, entry in zip(ids, log_probs, strict=False):
        yield int(token), _checked(token, _value(token, entry))


def cached_tokens(update: Any, prompt_tokens: int) -> int:
    """Prompt tokens whose keys and values were there; 0 in versions that do not say."""
    return min(int(getattr(update, "cached_tokens", 0) or 0), prompt_tokens)


def _value(token: int, entry: Any) -> float:
    if not isinstance(entry, dict):
        return float(entry)
    if token not in entry:
        # So does TorchSampler of some builds before logprobs_mode: the best tokens, whichever was sampled.
        raise EngineFault(
            f"TensorRT-LLM gave log probs of {sorted(entry)[:4]}, but not of the sampled token {token}; in this version serve with "
            "sampler_type: TRTLLMSampler in engine_yaml and log_prob_mode=processed"
        )
    value: Any = entry[token]
    return float(getattr(value, "logprob", value))


def _checked(token: int, log_prob: float) -> float:
    if not math.isfinite(log_prob) or log_prob > LARGEST_ROUNDING:
        raise EngineFault(f"TensorRT-LLM gave the log prob {log_prob} for token {token}")
    return min(log_prob, 0.0)
