"""Log probs of given tokens under a plain model: teacher-forced forward passes over a sample's ids, float32, nothing
shared with the code that sampled them.

*Raw* log probs are ``log_softmax(logits)``. *Processed* ones are of the distribution that was drawn from: logits divided
by the temperature, the top k kept, then of these the smallest set whose mass reaches top p, and what is left normalised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from engine.lora import merge_adapter
from engine.sample_rows import SampleRow, Span
from engine.types import LogProbMode, LogProbs, SamplingParams

BLOCK_TOKENS = 256
"""Tokens that are scored in one pass over what stands before them: with a vocabulary of 150,000 their logits take 0.15 GB."""

BOUNDARY = 1e-5
"""Probability mass. Where a token is the last to fit into top p depends on rounding if the mass before it is this close
to top p; then both sets are right."""


class PlainModel:
    """A causal language model from a checkpoint folder, on the CPU, in float32; with a LoRA adapter in it, if one is named.

    Raises: OSError, if there is none.
    """

    def __init__(self, model_dir: Path, lora: Path | None = None) -> None:
        logging.disable_progress_bar()
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                model_dir, dtype=torch.float32, local_files_only=True
            )
        except ValueError as error:
            raise OSError(f"{model_dir} holds no model that can be loaded: {error}") from error
        if lora is not None:
            merge_adapter(self._model, lora)
        self._model.eval()

    @property
    def vocab_size(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def log_probs(self, row: SampleRow) -> LogProbs:
        """Of each token to be scored, in order: float32 [number of them].

        Where rounding leaves a choice (see ``BOUNDARY``), the value closest to the recorded one. A token that could not
        have been sampled has ``-inf``.
        """
        places = np.flatnonzero(row.scored)
        blocks = [places[start : start + BLOCK_TOKENS] for start in range(0, len(places), BLOCK_TOKENS)]
        return np.concatenate([np.empty(0, np.float32), *(self._block(row, block) for block in blocks)])

    def _block(self, row: SampleRow, places: NDArray[np.intp]) -> LogProbs:
        logits = self._logits(row, places)
        found = np.empty(len(places), np.float32)
        for span in row.spans:
            inside = (places >= span.start) & (places < span.end)
            if inside.any():
                tokens = torch.from_numpy(row.tokens[row.prompt_length + places[inside]].astype(np.int64))
                found[inside] = _closest(logits[torch.from_numpy(inside)], tokens, span, row.recorded[places[inside]])
        return found

    def _logits(self, row: SampleRow, places: NDArray[np.intp]) -> Any:
        """What the model says before each of the given places of the response: float32 [places, vocabulary]."""
        ids = torch.from_numpy(row.tokens[: row.prompt_length + places[-1]].astype(np.int64))[None]
        before = torch.from_numpy(row.prompt_length + places - 1)
        with torch.inference_mode():
            return self._model(input_ids=ids, logits_to_keep=before, use_cache=False).logits[0].float()


def _closest(logits: Any, tokens: Any, span: Span, recorded: LogProbs) -> LogProbs:
    top_p = span.sampling.top_p
    thresholds = [top_p]
    if span.mode is LogProbMode.PROCESSED and top_p < 1:
        thresholds += [top_p - BOUNDARY, top_p + BOUNDARY]
    candidates = np.stack([_token_log_probs(logits, tokens, span, top_p) for top_p in thresholds])
    best = np.abs(candidates - recorded).argmin(axis=0)
    return np.asarray(candidates[best, np.arange(len(recorded))], dtype=np.float32)


def _token_log_probs(logits: Any, tokens: Any, span: Span, top_p: float) -> LogProbs:
    scores = logits if span.mode is LogProbMode.RAW else _processed(logits, span.sampling, top_p)
    found: LogProbs = torch.log_softmax(scores, dim=-1).gather(-1, tokens[:, None])[:, 0].numpy()
    return found


def _processed(logits: Any, sampling: SamplingParams, top_p: float) -> Any:
    if sampling.temperature == 0:
        return _greedy(logits)
    scores = logits / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        smallest = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    return _nucleus(scores, top_p) if top_p < 1 else scores


def _greedy(logits: Any) -> Any:
    """All mass on the largest logit."""
    certain = torch.full_like(logits, -torch.inf)
    return certain.scatter(-1, logits.argmax(dim=-1, keepdim=True), 0.0)


def _nucleus(scores: Any, top_p: float) -> Any:
    """Keep the largest scores until their mass reaches ``top_p``; at least one."""
    ordered, order = scores.sort(dim=-1, descending=True)
    probs = ordered.softmax(dim=-1)
    outside = probs.cumsum(dim=-1) - probs >= top_p
    outside[:, 0] = False
    return scores.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
