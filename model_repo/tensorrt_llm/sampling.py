"""A request as ``tensorrt_llm.SamplingParams``.

End tokens. The engine stops by itself at ``end_id`` and ``stop_token_ids``; ours (``common.stop_words``) has the last word in any
case, and stops it where words are longer or ``min_tokens`` holds ends back. What the engine is told, and why:

- ``end_id`` is always set: where it is None, the LLM asks its tokenizer for one, or raises where it has none. A request without
  end tokens has ``ignore_eos`` instead.
- ``min_tokens`` bans ``end_id`` alone, in the sampler, as an index into the logits: without an end token that is -1, the last token
  of the vocabulary. So it goes there only beside an end token.
- The other end tokens go into ``stop_token_ids``, which ``min_tokens`` does not hold back; where there are both, they stay here.
- ``include_stop_str_in_output``: else the token ids lose their end, and in versions before 2026-08 the log probs do not.

Sampling. Nothing given means greedy there, and ``seed`` None means 0, so all of it is always given. Greedy is ``top_k`` 1: not
every version takes a temperature of 0.
"""

from __future__ import annotations

from typing import Any

from .library import Library
from .names import Features

_PLACEHOLDER_END = 0
"""Where ``ignore_eos`` makes the engine take none."""


class RequestRefused(ValueError):
    """The request cannot be served as it is; the message names the input."""


def sampling_params(request: Any, library: Library, features: Features, guide_end: int | None) -> Any:
    """``request`` is a ``common.requests.GenerateRequest``; ``guide_end`` the token with which the engine ends guided replies.

    Raises: RequestRefused.
    """
    if not features.penalties:
        _refuse_penalties(request.sampling, features.version)
    arguments = {
        "max_tokens": request.max_tokens,
        "detokenize": False,
        "logprobs": features.logprobs,
        **_ends(request),
        **_distribution(request.sampling),
    }
    if features.simple_logprobs:
        arguments["logprobs_simple_format"] = True
    if features.logprobs_mode is not None:
        arguments["logprobs_mode"] = features.logprobs_mode
    if request.guide is not None:
        arguments["guided_decoding"] = _guide(request, library, guide_end)
    try:
        return library["SamplingParams"](**arguments)
    except ValueError as error:
        raise RequestRefused(f"TensorRT-LLM refused the sampling parameters: {error}") from error


def _ends(request: Any) -> dict[str, Any]:
    min_tokens = request.sampling.min_tokens
    if not request.end_ids:
        return {"end_id": _PLACEHOLDER_END, "pad_id": _PLACEHOLDER_END, "ignore_eos": True}
    first, *others = request.end_ids
    ends: dict[str, Any] = {"end_id": first, "pad_id": first, "include_stop_str_in_output": True}
    if min_tokens:
        ends["min_tokens"] = min_tokens
    elif others:
        ends["stop_token_ids"] = others
    return ends


def _distribution(sampling: Any) -> dict[str, Any]:
    is_greedy = sampling.temperature == 0
    return {
        "temperature": 1.0 if is_greedy else sampling.temperature,
        "top_k": 1 if is_greedy else sampling.top_k,
        "top_p": 1.0 if is_greedy else sampling.top_p,
        "seed": sampling.seed,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def _refuse_penalties(sampling: Any, version: str) -> None:
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for name, value in neutral.items():
        if getattr(sampling, name) != value:
            raise RequestRefused(
                f"{name}: the sampler of TensorRT-LLM {version} does not apply it (parameter penalties); send {value}"
            )


def _guide(request: Any, library: Library, guide_end: int | None) -> Any:
    # The grammar's end is the tokenizer's end token; were it not an end of the request too, the reply would go on after it.
    if guide_end not in request.end_ids:
        raise RequestRefused(
            f"guided_decoding_guide: the engine ends a guided reply with token {guide_end}, which must be among the end tokens"
        )
    fields = {
        "json": {"json_object": True},
        "json_schema": {"json": request.guide.text},
        "regex": {"regex": request.guide.text},
    }
    return library["GuidedDecodingParams"](**fields.get(request.guide.kind, {"grammar": request.guide.text}))
