"""What ``config.pbtxt`` of TensorRT-LLM's C++ backend can be told, and what it would not hear.

The backend (``triton_backend/inflight_batcher_llm/src/model_instance_state.cc`` and ``model_state.cc`` of TensorRT-LLM, commit
c8c6df0, the 1.2 line) reads each parameter as text. One that is missing or cannot be converted (``enable_kv_cache_reuse: yes``)
is a line in its log, and the default holds. So values are checked here by the kinds of ``model.json``, as its converters take them.
What it reads and never uses for a text model is refused by name, with the reason.

Three parameters must be there, or it does not load: ``tokenizer_dir``, which it does not use, ``guided_decoding_backend`` and
``xgrammar_tokenizer_info_path``. Guided decoding is on only with the last two set, and ``xgrammar`` is the only backend.
``max_queue_size`` is no parameter: it is ``dynamic_batching.default_queue_policy.max_queue_size``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RepositoryError
from engine.repository import MODELS
from engine.types import Dialect, LogProbMode

FIXED: Mapping[str, str] = {
    "normalize_log_probs": "false",
    "max_beam_width": "1",
    "exclude_input_in_output": "true",
    "log_probs_streaming": str(Dialect.CUMULATIVE),
    "log_prob_mode": str(LogProbMode.PROCESSED),
}
"""What is recorded rests on these. With more than one beam, beam search is the default, and sampling knobs do nothing."""
EMPTY: Mapping[str, str] = {"tokenizer_dir": "", "guided_decoding_backend": "", "xgrammar_tokenizer_info_path": ""}
"""Written even if they are not set."""
QUEUE_SIZE = "max_queue_size"
REFUSED: Mapping[str, str] = {
    "tokenizer_dir": "the backend ignores it; for guides, set guided_decoding_backend and xgrammar_tokenizer_info_path",
    "cross_kv_cache_fraction": "it is for encoder-decoder models; an engine with a decoder only does not load with it",
    "speculative_decoding_fast_logits": "it is for draft tokens of another model, and none are sent",
    "enable_trt_overlap": "the backend ignores it",
}
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_GUIDES = ("guided_decoding_backend", "xgrammar_tokenizer_info_path")

_INTS = r"\d{1,9}(\s*,\s*\d{1,9})*"
_KINDS: Mapping[str, tuple[str, str]] = {
    "bool": (r"[Tt]rue|TRUE|[Ff]alse|FALSE|0|1", "true or false"),
    "count": (r"\d{1,9}", "a whole number, 0 or more"),
    "bytes": (r"\d{1,18}", "a number of bytes"),
    "positive": (r"0*[1-9]\d{0,8}", "a whole number of at least 1"),
    "fraction": (r"0?\.\d+|[01](\.0*)?", "a number between 0 and 1"),
    "ints": (_INTS, "whole numbers, as in 0,1"),
    "groups": (rf"{_INTS}(;{_INTS})*", "whole numbers, as in 0,1;2,3"),
    "choices": (rf"\{{{_INTS}\}}(\s*,\s*\{{{_INTS}\}})*", "lists of whole numbers, as in {0}, {0, 1}"),
    "path": (r".+", "a path"),
}
"""Of a value: the pattern and the words for it."""


@dataclass(frozen=True, slots=True)
class ModelTable:
    """``inputs`` and ``outputs``: dtype and dims by name. ``parameters``: what a value is, a kind or the words to choose from."""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    required: tuple[str, ...]
    parameters: Mapping[str, str | Sequence[str]]
    defaults: Mapping[str, str]

    @classmethod
    def read(cls, file: Path = MODELS / "tensorrt_llm_engine" / "model.json") -> ModelTable:
        document = json.loads(file.read_text(encoding="utf-8"))
        return cls(
            inputs=_tensors(document["inputs"]),
            outputs=_tensors(document["outputs"]),
            required=tuple(document["required"]),
            parameters=document["parameters"],
            defaults=document["defaults"],
        )

    def check(self, settings: Mapping[str, str]) -> None:
        """Raises: RepositoryError, if the backend could not be told so, or would not do as it is told."""
        for name, value in settings.items():
            if name in FIXED:
                raise RepositoryError(f"{name} must stay {FIXED[name]}: what is recorded rests on it")
            if name in REFUSED:
                raise RepositoryError(f"{name} is not offered: {REFUSED[name]}")
            if name not in self.parameters:
                known = ", ".join(sorted(self.parameters))
                raise RepositoryError(f"TensorRT-LLM's C++ model has no parameter {name}; it has {known}")
            _check_value(name, value, self.parameters[name])
        _check_together(settings)


def offers_guides(settings: Mapping[str, str]) -> bool:
    """Of checked settings."""
    return all(settings.get(name) for name in _GUIDES)


def _check_value(name: str, value: str, kind: str | Sequence[str]) -> None:
    if name in EMPTY and not value:
        return
    if isinstance(kind, str):
        pattern, words = _KINDS[kind]
    else:
        pattern, words = "|".join(map(re.escape, kind)), " or ".join(kind)
    if re.fullmatch(pattern, value) is None:
        raise RepositoryError(f"{name} is {value!r}, which the backend would ignore: it takes {words}")


def _check_together(settings: Mapping[str, str]) -> None:
    given = [name for name in _GUIDES if settings.get(name)]
    if len(given) == 1:
        other = next(name for name in _GUIDES if name not in given)
        raise RepositoryError(f"{given[0]} does nothing without {other}: set both, or neither")
    named, lookahead = [name for name in _LOOKAHEAD if name in settings], settings.get("decoding_mode") == "lookahead"
    if named and not lookahead:
        raise RepositoryError(f"{named[0]} does nothing without decoding_mode=lookahead")
    if lookahead and len(named) < len(_LOOKAHEAD):
        raise RepositoryError(
            f"decoding_mode=lookahead needs {', '.join(_LOOKAHEAD)}: the engine does not load without"
        )


def _tensors(document: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (kind, tuple(dims)) for name, (kind, dims) in document.items()}
