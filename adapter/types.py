"""What protocols, render, parsing and trajectory say to one another: neutral messages, requests, replies, records.

A *message* is a plain dict in the shape that chat templates read, the same for every protocol:

    {"role": "system" | "user", "content": str}
    {"role": "assistant", "content": str, "reasoning_content"?: str, "tool_calls"?: [{"type": "function",
        "function": {"name": str, "arguments": dict}}]}
    {"role": "tool", "content": str}

Call ids are left out: the model never sees them. A *tool* is ``{"type": "function", "function": {"name", "description",
"parameters"}}``, ``parameters`` being a JSON schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from engine.types import FinishReason, Guide, Ids, LogProbMode, LogProbs, SamplingParams

Message = dict[str, Any]
Tool = dict[str, Any]


class HistoryPolicy(StrEnum):
    """What the model sees of earlier turns; chosen per session. Both are exact."""

    KEEP = "keep"
    """Append-only: the stored ids, then the rendered suffix. A session is one training row per head (system, tools, model)."""
    TEMPLATE = "template"
    """What the chat template renders at that moment, which may drop old thinking; rows branch where it does."""


class Durability(StrEnum):
    """What a turn survives once its client has seen its end."""

    NONE = "none"
    """Nothing: there is no journal."""
    OS = "os"
    """The end of the server's process, however it comes."""
    FSYNC = "fsync"
    """The end of the machine too."""


class ScaffoldKind(StrEnum):
    """Prompt tokens that neither a client wrote nor the model sampled."""

    CLOSE = "close"
    """What closes the turn before: an end token that a truncated reply lacks, the newline after it."""
    GENERATION_PROMPT = "generation_prompt"
    """What opens the assistant's turn."""


@dataclass(frozen=True, slots=True)
class ScaffoldSpan:
    """Tokens ``[start, end)`` of a turn's ``given`` ids."""

    start: int
    end: int
    kind: ScaffoldKind


@dataclass(frozen=True, slots=True)
class Normalised:
    """Volatile text of a request that a named rule took out, so that it breaks no prefix; kept in the record as it came."""

    rule: str
    field: str
    """Where it stood, as the client wrote it: ``system.0.text``."""
    original: str


class LabelKind(StrEnum):
    """What an agent asked for; a session's requests are not all turns of its main loop."""

    MAIN = "main"
    """The agent's own loop."""
    SUBAGENT = "subagent"
    """The loop of an agent that another one started."""
    TITLE = "title"
    """A name for the conversation."""
    COMPACTION = "compaction"
    """A summary that will take the history's place."""
    MEMORY = "memory"
    """Notes for later conversations."""
    COUNT = "count"
    """A probe: the client wants to know a number, not a reply."""
    OTHER = "other"
    """Another side call."""


@dataclass(frozen=True, slots=True)
class Label:
    """Which of a session's agents asked, and what for. ``agent`` and ``parent`` are the client's ids; None is the main agent."""

    kind: LabelKind = LabelKind.MAIN
    agent: str | None = None
    parent: str | None = None
    source: str = "default"
    """The evidence that decided the kind: ``header:x-openai-subagent``, ``system:opencode-title``."""


class ToolChoiceMode(StrEnum):
    """Whether the reply may call a tool, or has to."""

    AUTO = "auto"
    """The model decides."""
    NONE = "none"
    """No call; the tools stay in the prompt, so that the head does not change."""
    REQUIRED = "required"
    """At least one call, of any tool or of one that is named."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``names``: the tools that may be called; empty means all of the request's."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    names: tuple[str, ...] = ()
    field: str = field(default="tool_choice", compare=False)
    """Where the client said so."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The visible text has to be JSON: any object, or what the JSON schema allows. ``field`` is where the client asked for it."""

    schema: Mapping[str, Any] | None
    field: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request of a client, whatever its protocol. Fields that the client left out are None or empty."""

    messages: tuple[Message, ...]
    continues: bool = False
    """The last message is an assistant's that the reply goes on from (prefill); it is not a turn of its own."""
    tools: tuple[Tool, ...] = ()
    """Rendered at the head of the prompt."""
    deferred_tools: tuple[Tool, ...] = ()
    """Can be called too, but are defined by messages; part of no head."""
    tool_choice: ToolChoice = ToolChoice()
    strict_tools: Mapping[str, str] = field(default_factory=dict)
    """Tools whose calls have to follow their schema: name to the field that asks for it (``tools.0.function.strict``)."""
    parallel_tool_calls: bool = True
    """False: at most one call in a reply."""
    output_format: OutputFormat | None = None
    model: str | None = None
    max_tokens: int | None = None
    n: int = 1
    """Replies to sample, each a turn of its own."""
    log_probs: bool = False
    """Whether the reply reports the log prob of each of its tokens."""
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    """Only what the client set; keys are field names of ``engine.types.SamplingParams``, values are in range."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = True
    """Whether a stream reports usage (Chat Completions: only on request)."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, such as ``enable_thinking``."""
    option_fields: Mapping[str, str] = field(default_factory=dict)
    """For a template option the field of the request that sets it; without effect, if the template does not read the option."""
    handles: tuple[tuple[str, ...], ...] = ()
    """For each message the ids in it that we may have issued: thinking signatures, tool-call ids. Empty if no message has any."""
    normalised: tuple[Normalised, ...] = ()
    reply_context: Any = None
    """What the protocol needs of the request to write its reply, in its own terms; opaque to everything else."""
    checkpoint: Any = None
    """Where the reading of a request that begins like this one can go on, for the protocol; opaque to everything else."""
    unused_fields: tuple[str, ...] = ()
    """Fields that were accepted though they have no effect here, since they only describe the client."""

    @property
    def max_calls(self) -> int | None:
        """Calls that a reply may hold; None for any number."""
        if self.tool_choice.mode is ToolChoiceMode.NONE:
            return 0
        return None if self.parallel_tool_calls else 1


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call as parsed from the model's output.

    Where the arguments broke off, each member of ``input`` that was begun is null; where there was nothing valid, it is ``{}``.
    """

    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedModelOutput:
    """A whole reply, taken apart."""

    reasoning: str = ""
    text: str = ""
    tool_uses: tuple[ToolUse, ...] = ()
    ill_formed: bool = False
    """A tool call was malformed: the client got something safe, the record has the ids as sampled."""
    stop_sequence: str | None = None
    """The client's stop string that ended the reply; it is not part of ``text``."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins; its name is known."""

    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the running tool call's arguments, a fragment of a JSON text. Joined, the fragments are one JSON object."""

    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The running tool call is complete. ``use.input`` equals the JSON of the joined deltas."""

    use: ToolUse


ReplyEvent = ReasoningDelta | TextDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """One sampled token of a reply, for a client that asked: the bytes that it adds to the text, and its log prob."""

    text: bytes
    log_prob: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a reply."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """One result, prepared twice: ``wire`` for the client in its protocol's shape, ``manager_message`` for the trajectory."""

    wire: Any
    manager_message: Message
    finish_reason: str
    """``stop``, ``length`` or ``tool_calls``."""
    stop_sequence: str | None = None
    """The client's stop string, where the reply ended by it and the protocol reports it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What was in force for one turn, for the record."""

    params: SamplingParams
    max_tokens: int
    log_prob_mode: LogProbMode
    guide: Guide | None = None
    """The grammar that the reply was held to: what was sampled is not what the model alone would have."""
    model: str = ""
    """The served name of the weights that sampled: a model's, or an adapter's."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens ``[start, end)`` were sampled under weight version ``version``."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True)
class TurnSegment:
    """Output tokens from ``start`` to the next segment's were sampled by one endpoint in one go."""

    start: int
    endpoint: str
    """``host:port``."""
    seed: int
    """Of this segment alone; the first has the turn's."""
    version: int
    """Weight version of its first token."""
    cached_tokens: int | None
    """Prompt tokens, earlier segments among them, that came from the engine's cache; None if it broke off before that was said."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One generation as it happened: ids int32 [P] and [N], log probs float32 [N].

    The Python API also takes plain lists, and ``None`` for log probs that the engine did not give.
    """

    prompt_ids: Ids
    output_ids: Ids
    output_log_probs: LogProbs | None = None
    finish_reason: FinishReason | str = FinishReason.STOP
    ill_formed: bool = False
    untrainable: str | None = None
    """A reason code, if the turn is kept as context but must not be trained (``suspect_logprobs``)."""
    versions: tuple[VersionSpan, ...] = ()
    segments: tuple[TurnSegment, ...] = ()
    """More than one, if the reply was continued; none from an engine that does not say."""
    sampling: Sampling | None = None
    cached_tokens: int = 0
    started_at: float = 0.0
    """Unix time, seconds."""
    finished_at: float = 0.0
    replied: int = 0
    """Tokens at the end of the prompt that are the beginning of the reply: the client's words, or an earlier turn's output."""
    scaffold: tuple[ScaffoldSpan, ...] = ()
    """Spans over what was rendered last: the whole prompt, or what follows the ids that the trajectory's plan knew."""
    normalised: tuple[Normalised, ...] = ()
    label: Label | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", np.asarray(self.prompt_ids, dtype=np.int32))
        object.__setattr__(self, "output_ids", np.asarray(self.output_ids, dtype=np.int32))
        if self.output_log_probs is not None:
            object.__setattr__(self, "output_log_probs", np.asarray(self.output_log_probs, dtype=np.float32))
