"""A request as ``tensorrt_llm.SamplingParams``.

End tokens. The engine stops by itself at ``end_id`` and ``stop_token_ids``; ours (``common.stop_words``) has the last word in any
case, and stops it where words are longer. What the engine is told, and why:

- ``end_id`` is always set: where it is None, the LLM asks its tokenizer for one, or raises where it has none. A request without
  end tokens has ``ignore_eos`` instead. The other end tokens go into ``stop_token_ids``.
- With ``min_tokens`` it is told of no end at all, and ours holds them back: its own ``min_tokens`` bans ``end_id`` only, without an
  end token the last of the vocabulary (index -1), counts the prompt in some versions, and changes raw log probs. An end token may
  so be sampled before its time; the reply then goes on.
- ``include_stop_str_in_output``: else the token ids lose their end, and in versions before 2026-08 the log probs do not.

Sampling. Nothing given means greedy there, and ``seed`` None means 0, so all of it is always given. Greedy is ``top_k`` 1: not
every version takes a temperature of 0.

What is called raw log probs there are those before temperature and truncation, but after penalties and the mask of a grammar, which
change the logits in place (``tensorrt_llm/_torch/pyexecutor/sampler.py``, ``_process_requests``; ``guided_decoder.py``). Ours are
the model's own, so under ``log_prob_mode=raw`` penalties are refused here, and guided decoding when the model loads.
"""

from __future__ import annotations

from typing import Any

from .library import Library
from .names import Features
from .settings import CPP_SAMPLER, LogProbs

_PLACEHOLDER_END = 0
"""Where ``ignore_eos`` makes the engine take none."""

_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class RequestRefused(ValueError):
    """The request cannot be served as it is; the message names the input."""


def sampling_params(request: Any, library: Library, features: Features, guide_end: int | None) -> Any:
    """``request`` is a ``common.requests.GenerateRequest``; ``guide_end`` the token with which the engine ends guided replies.

    Raises: RequestRefused.
    """
    _check_penalties(request.sampling, features)
    _check_truncation(request.sampling, features)
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
    if not request.end_ids or request.sampling.min_tokens:
        return {"end_id": _PLACEHOLDER_END, "pad_id": _PLACEHOLDER_END, "ignore_eos": True}
    first, *others = request.end_ids
    ends: dict[str, Any] = {"end_id": first, "pad_id": first, "include_stop_str_in_output": True}
    return ends | {"stop_token_ids": others} if others else ends


def _distribution(sampling: Any) -> dict[str, Any]:
    is_greedy = is_certain(sampling)
    return {
        "temperature": 1.0 if is_greedy else sampling.temperature,
        "top_k": 1 if is_greedy else sampling.top_k,
        "top_p": 1.0 if is_greedy else sampling.top_p,
        "seed": sampling.seed,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def _check_penalties(sampling: Any, features: Features) -> None:
    for name, neutral in _NEUTRAL.items():
        if getattr(sampling, name) == neutral:
            continue
        if not features.penalties:
            why = f"the sampler of TensorRT-LLM {features.version} does not apply it (parameter penalties)"
        elif features.log_probs is LogProbs.RAW:
            why = "TensorRT-LLM takes raw log probs after it; serve with log_prob_mode=processed"
        else:
            continue
        raise RequestRefused(f"{name}: {why}; or send {neutral}")


def _check_truncation(sampling: Any, features: Features) -> None:
    if features.truncation or is_certain(sampling):
        return
    for name, value, neutral in (("runtime_top_k", sampling.top_k, 0), ("runtime_top_p", sampling.top_p, 1.0)):
        if value != neutral:
            raise RequestRefused(
                f"{name}: {CPP_SAMPLER} takes log probs before it truncates, so they would not be of what is sampled from; send "
                f"{neutral}, or serve with TorchSampler"
            )


def is_certain(sampling: Any) -> bool:
    """Whether one token only can be sampled."""
    return bool(sampling.temperature == 0 or sampling.top_k == 1)


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
