"""The engine's vocabulary: what is asked for and what comes back.

Ids are int32 arrays and log probs float32 arrays, one-dimensional, equal in length; they are shared by reference and
never written to after they were made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
LogProbs = NDArray[np.float32]


class FinishReason(StrEnum):
    """Why a generation ended, as the engine says it."""

    STOP = "stop"
    """An end token or a stop word was sampled; it is the tail of the output ids."""
    LENGTH = "length"
    """The token limit of the request or the model's context was reached."""
    CANCELLED = "cancelled"
    """The request was cancelled; the ids so far are valid, the reply is not complete."""


class LogProbMode(StrEnum):
    """What the log probs of an engine are the log of."""

    RAW = "raw"
    """log_softmax of the model's logits, before temperature, penalties, truncation and the mask of a guide."""
    PROCESSED = "processed"
    """The distribution that was sampled from, after temperature, penalties and truncation; where a guide was in force, after
    its mask too. Importance ratios against it need the same mask on the trainer's side."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Every field is in force; the defaults change nothing."""

    temperature: float = 1.0
    """>= 0; 0 is greedy."""
    top_p: float = 1.0
    """In (0, 1]."""
    top_k: int = 0
    """>= 0; 0 means all of the vocabulary."""
    seed: int = 0
    """uint64. The caller chooses a distinct one per request: TensorRT-LLM's default is 0 for all."""
    min_tokens: int = 0
    """End tokens and stop words cannot end the reply before this many tokens."""
    repetition_penalty: float = 1.0
    """> 0; multiplicative, over prompt and output (Keskar et al. 2019, CTRL)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token that the output already holds."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that the output holds it."""


class GuideKind(StrEnum):
    """What the text of a ``Guide`` is. The first four are TensorRT-LLM's (``guided_decoding_guide_type``)."""

    JSON = "json"
    """A JSON object; the text is not looked at."""
    JSON_SCHEMA = "json_schema"
    """JSON that follows the schema."""
    REGEX = "regex"
    """Text that matches as a whole, in the syntax of Rust's ``regex``."""
    EBNF_GRAMMAR = "ebnf_grammar"
    """A grammar in xgrammar's EBNF."""
    LARK = "lark"
    """A grammar in llguidance's variant of Lark, in which tokens are named by id (llguidance, docs/syntax.md)."""


@dataclass(frozen=True, slots=True)
class Guide:
    """A grammar that the output ids have to follow. End tokens come only where it is complete."""

    kind: GuideKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation.

    ``request_id`` is unique among live requests. ``end_ids`` are tokens that end the reply, ``stop_words`` are id
    sequences that do; both stay in the output. ``session`` and ``turn`` tell the engine's own log whom the request
    served.
    """

    request_id: str
    prompt_ids: Ids
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_ids: tuple[int, ...] = ()
    stop_words: tuple[tuple[int, ...], ...] = ()
    guide: Guide | None = None
    """Of a kind that ``EngineInfo.guides`` has."""
    lora: str = ""
    """The adapter to sample with, one of ``EngineInfo.loras``; empty for the model itself."""
    session: str = ""
    turn: int = 0
    continued: int = 0
    """Tokens at the end of the prompt that are this reply's: an earlier request sampled them and did not come to its end. To the
    engine they are prompt; this is for its log."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation. ``cached_tokens`` counts prompt tokens that the engine took from its KV cache."""

    reason: FinishReason
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a segment comes from: the endpoint that sampled it (``host:port``), and its seed (uint64)."""

    endpoint: str
    seed: int


class TokenChunk(NamedTuple):
    """New tokens of one generation, in order. Only the last chunk has ``finished``; it may hold no ids.

    A tuple since two are made of every message, and a frozen dataclass takes six times as long to make.
    """

    ids: Ids
    log_probs: LogProbs
    weight_version: int
    finished: Finished | None = None
    segment: int = 0
    """Counts how often the generation was continued before these tokens, on another endpoint or after a cut."""
    origin: Origin | None = None
    """The same object for all chunks of a segment; None from an engine that does not say."""
    cached_tokens: int | None = None
    """At the end of a segment that was cut: what ``Finished.cached_tokens`` is at the end of a generation."""


class Dialect(StrEnum):
    """How a model streams; the values are those of the parameter ``log_probs_streaming``."""

    DELTA = "delta"
    """The contract of ``engine.contract``, as our models speak it."""
    CUMULATIVE = "cumulative"
    """TensorRT-LLM's C++ model, see ``engine.cumulative``."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the probe found out about a served model."""

    model: str
    """The Triton model's name."""
    log_prob_mode: LogProbMode
    max_seq_len: int
    """Prompt and output together, in tokens."""
    vocab_size: int
    weight_version: int
    guides: frozenset[GuideKind] = frozenset()
    """The kinds of guides that generations can have; empty where there is no guided decoding."""
    loras: frozenset[str] = frozenset()
    """Names of the LoRA adapters that generations can have."""
    dialect: Dialect = Dialect.DELTA
    tokens_per_block: int = 0
    """Of the KV cache, where its reuse is told in blocks; 0 elsewhere."""


class Engine(Protocol):
    """The seam between the adapter and whatever generates."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Chunks until the one with ``finished``. Closing the iterator early cancels the generation.

        Raises: EngineError (see ``engine.errors``).
        """
        ...

    async def connect(self) -> None:
        """Have a connection, so that a generation fails for no want of one. Costs next to nothing where there is one.

        Raises: EngineUnavailable, if none can be made in time.
        """
        ...

    async def check_ready(self) -> None:
        """Raises: EngineUnavailable, with the reason, if a generation would not be accepted now."""
        ...
