"""The one configuration: a frozen dataclass, built once (``adapter.configuring``), then passed down.

The command line's options are made from these fields, so a default, its help and its type stand in one place.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adapter.types import Durability, HistoryPolicy

LEAST_KEY = 16
"""Characters of an admin key; 16 random letters and digits are 95 bits."""


class ConfigError(Exception):
    """A setting is unknown or has a bad value; the message names it and where it came from."""


def setting(default: Any, help_text: str, *, secret: bool = False) -> Any:
    """A field with its help for the command line. The value of a ``secret`` is never shown."""
    return dataclasses.field(default=default, repr=not secret, metadata={"help": help_text, "secret": secret})


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set. Units are in the names: seconds ``_s``, milliseconds ``_ms``, tokens, bytes."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8400, "Port to listen on; 0 takes a free one.")
    admin_key: str | None = setting(
        None,
        "Turns access keys on; this one opens everything. Better in the environment, or in a file: command lines are seen.",
        secret=True,
    )
    admin_key_file: Path | None = setting(None, "File that holds the admin key.")
    triton: tuple[str, ...] = setting(
        (),
        "gRPC address HOST:PORT of a running Triton; may be repeated, for replicas. Without it `up` starts the embedded one.",
    )
    triton_file: Path | None = setting(
        None, "File with the addresses of the Tritons, a HOST:PORT a line; read again when it changes."
    )
    failover_wait_s: float = setting(
        60.0, "How long a reply that broke off with its engine waits for an engine to go on with it."
    )
    weights_timeout_s: float = setting(600.0, "How long an engine may take to read new weights and put them in place.")
    engine_model: str = setting(
        "transformers", "Embedded model: `transformers` (real) or `scripted` (replies from a script)."
    )
    model_dir: Path | None = setting(None, "Model folder for the transformers model. Default: the small demo model.")
    engine_setting: tuple[str, ...] = setting((), "A parameter of the embedded model as NAME=VALUE; may be repeated.")
    engine_log: Path | None = setting(
        None, "File to which the embedded model writes what it sampled, one JSON line a request."
    )
    tokenizer: Path | None = setting(
        None, "Folder with tokenizer.json and tokenizer_config.json. Default: the model folder."
    )
    chat_template: Path | None = setting(None, "File with a chat template to use in place of the tokenizer's.")
    end_token: tuple[str, ...] = setting((), "Token that ends a reply, in place of the tokenizer's; may be repeated.")
    tool_parser: str = setting(
        "auto",
        "How tool calls are read out of the output: `auto` (by the template), `none`, or a family: `deepseek_v3`, "
        "`deepseek_v32`, `function_gemma`, `gemma3`, `gemma4`, `glm45`, `gpt_oss`, `hermes`, `kimi_k2`, `llama`, "
        "`minimax_m2`, `mistral`, `xml`.",
    )
    reasoning_parser: str = setting(
        "auto",
        "How reasoning is: `auto` (by the template), `none`, `think`, `mistral`; some families read it themselves.",
    )
    workers: int = setting(
        1, "Processes to serve with, each with its share of the sessions; worker K also listens on port + 1 + K."
    )
    advertise_url: str | None = setting(
        None,
        "Scheme and host of the workers' own URLs as clients reach them. Default: http and the address listened on.",
    )
    worker_hang_s: float = setting(30.0, "A worker whose event loop does not answer for so long is replaced.")
    served_model_name: str = setting("rollserve", "The model's name towards clients.")
    model_alias: tuple[str, ...] = setting(
        (), "Another name that clients may ask for; `*` accepts any; may be repeated."
    )
    models: Path | None = setting(
        None,
        "TOML file with further models to serve: a table [NAME] for each, with triton, tokenizer, and what else is its own.",
    )
    lora: tuple[str, ...] = setting(
        (),
        "A LoRA adapter that clients may ask for as a model: NAME=FOLDER, which the embedded engine loads, or NAME, which a "
        "running Triton has loaded; may be repeated.",
    )
    temperature: float = setting(1.0, "Temperature where neither session nor request sets one.")
    top_p: float = setting(1.0, "top_p where neither session nor request sets one.")
    top_k: int = setting(0, "top_k where neither session nor request sets one; 0 is off.")
    max_tokens: int = setting(
        8192, "Output tokens where neither session nor request sets a limit; never past the context."
    )
    max_context_tokens: int | None = setting(
        None, "Prompt plus output, in tokens. Default and upper bound: the engine's."
    )
    max_turns: int | None = setting(None, "Turns that a session may have. Default: no limit.")
    max_session_tokens: int | None = setting(
        None, "Output tokens that a session may have; turns that run at once may go over it. Default: no limit."
    )
    max_running_turns: int | None = setting(None, "Turns that run at once. Default: no limit.")
    max_queued_turns: int = setting(1000, "Requests that wait, in order, while so many turns run; others get a 429.")
    max_queue_wait_s: float = setting(60.0, "How long a request waits for its turn to run, before it gets a 429.")
    session_idle_s: float | None = setting(
        None, "A session that had no turn for so long is kept in the journal only, until it is asked for."
    )
    session_ttl_s: float | None = setting(
        None, "A session that was opened so long ago and is not finished is dropped, with all it recorded."
    )
    memory_budget_bytes: int | None = setting(
        None,
        "What sessions may take in memory, about. Idle ones are then kept in the journal only; while there is no room, "
        "none is opened.",
    )
    max_body_bytes: int = setting(64 * 1024 * 1024, "Largest request body.")
    history_policy: HistoryPolicy = setting(
        HistoryPolicy.KEEP,
        "What the model sees of earlier turns: `keep` (append-only) or `template` (as rendered today).",
    )
    fork_threshold_tokens: int = setting(
        1024, "Replies shorter than this may be realigned or merged on export; 0 turns that off."
    )
    explicit_sessions: bool = setting(False, "Only serve sessions that were opened with POST /v1/sessions.")
    keep_finished: int = setting(1000, "Finished sessions whose samples are kept, for a repeated finish.")
    finish_grace_s: float = setting(5.0, "How long finish waits for turns in flight before it cancels them.")
    connect_timeout_s: float = setting(5.0, "How long a turn waits for a connection to the engine.")
    first_token_timeout_s: float = setting(600.0, "How long a turn waits for its first token.")
    inactivity_timeout_s: float = setting(120.0, "Longest silence of the engine between two tokens of a reply.")
    first_event_wait_s: float = setting(
        0.25, "How long a stream's headers wait for the first token, so that what the engine refuses is a plain error."
    )
    keepalive_s: float = setting(10.0, "Silence towards a streaming client after which a sign of life is sent.")
    stalled_reader_s: float = setting(
        120.0, "A streaming client that takes no byte for this long, though there are some, loses its connection."
    )
    replay_reply_bytes: int = setting(
        16 * 1024 * 1024, "Events of a running reply or session feed that are kept to be read again; the oldest go."
    )
    replay_session_bytes: int = setting(
        32 * 1024 * 1024, "Events of ended replies that a session keeps to be read again; the oldest replies go."
    )
    replay_total_bytes: int = setting(
        256 * 1024 * 1024, "Events of ended replies that all sessions keep to be read again; the oldest replies go."
    )
    replay_keep_s: float = setting(
        300.0, "How long after its end a reply can be read again, and how long a feed goes on without a follower."
    )
    durability: Durability = setting(
        Durability.FSYNC,
        "What a finished turn survives: `fsync` (the machine's end), `os` (the process's end) or `none` (no journal).",
    )
    journal: Path | None = setting(
        None, "Folder of the journal. Default: `rollserve/journal` in $XDG_STATE_HOME or ~/.local/state."
    )
    journal_segment_bytes: int = setting(64 * 1024 * 1024, "Size at which a file of the journal is left for a new one.")
    metrics_public: bool = setting(False, "With access keys on: `GET /metrics` takes no key. It names no session.")
    otel_endpoint: str | None = setting(
        None,
        "OpenTelemetry collector (OTLP over HTTP, http://HOST:4318) that is sent a trace of every turn; needs the extra "
        "`otel`. Default: what the OTEL_* variables say, else none.",
    )
    log_format: str = setting("text", "`text` or `json`.")
    log_level: str = setting("info", "`debug`, `info`, `warning` or `error`.")

    def __post_init__(self) -> None:
        if self.admin_key is not None and not _is_key(self.admin_key):
            raise ConfigError(f"the admin key must have {LEAST_KEY} or more printable ASCII characters, without spaces")
        for name in ("advertise_url", "otel_endpoint"):
            url = getattr(self, name)
            if url is not None and not is_base_url(url):
                raise ConfigError(f"{name} is {url!r}; it takes http://HOST or https://HOST")
        if self.triton and self.triton_file is not None:
            raise ConfigError("triton and triton_file are both set; one of them is enough")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it takes one of {', '.join(allowed)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must lie in [{low:g}, {high:g}]")
        if self.session_idle_s is not None and self.durability is Durability.NONE:
            raise ConfigError("session_idle_s needs a journal to keep sessions in; durability is none")


_CHOICES = {
    "engine_model": ("transformers", "scripted"),
    "log_format": ("text", "json"),
    "log_level": ("debug", "info", "warning", "error"),
}
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "temperature": (0, 100),
    "top_p": (1e-6, 1),
    "top_k": (0, 2**31 - 1),
    "max_tokens": (1, 2**31 - 1),
    "max_context_tokens": (2, 2**31 - 1),
    "max_turns": (1, 2**31 - 1),
    "max_session_tokens": (1, 2**31 - 1),
    "max_running_turns": (1, 10**6),
    "max_queued_turns": (0, 10**6),
    "max_queue_wait_s": (0.01, 86400),
    "session_idle_s": (0, 10**9),
    "session_ttl_s": (0, 10**9),
    "memory_budget_bytes": (0, 2**50),
    "max_body_bytes": (1024, 2**31 - 1),
    "fork_threshold_tokens": (0, 2**31 - 1),
    "keep_finished": (0, 10**7),
    "finish_grace_s": (0, 3600),
    "connect_timeout_s": (0.01, 3600),
    "failover_wait_s": (0, 86400),
    "weights_timeout_s": (0.01, 86400),
    "first_token_timeout_s": (0.01, 86400),
    "inactivity_timeout_s": (0.01, 86400),
    "first_event_wait_s": (0, 60),
    "journal_segment_bytes": (4096, 2**40 - 1),
    "workers": (1, 256),
    "worker_hang_s": (1, 3600),
    "keepalive_s": (0.01, 3600),
    "stalled_reader_s": (0.01, 86400),
    "replay_reply_bytes": (1024, 2**40),
    "replay_session_bytes": (0, 2**40),
    "replay_total_bytes": (0, 2**40),
    "replay_keep_s": (0, 86400),
}


def is_base_url(url: str) -> bool:
    """Whether it is http or https, and names a host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_key(text: str) -> bool:
    return len(text) >= LEAST_KEY and all("!" <= character <= "~" for character in text)
