"""What agent programs do to the history that they send; ``PROFILES`` are after the real ones, and two that do it all at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Dialect(StrEnum):
    """The wire protocol."""

    MESSAGES = "messages"
    CHAT = "chat"
    RESPONSES = "responses"


class Thinking(StrEnum):
    """What becomes of a reply's thinking."""

    VERBATIM = "verbatim"
    TRIMMED = "trimmed"
    UNSIGNED_DROPPED = "unsigned dropped"
    """Dropped where it came without a signature."""
    DROPPED = "dropped"


class Keys(StrEnum):
    """The order of the keys of a call's arguments."""

    AS_WRITTEN = "as written"
    SCHEMA = "schema"
    """The tool's parameters first, in the order of its schema."""
    SHUFFLED = "shuffled"
    """Another order in every request, at every level."""


class Order(StrEnum):
    """The order of the results of parallel calls."""

    CALLS = "calls"
    COMPLETION = "completion"
    SHUFFLED = "shuffled"
    """Another order in every request."""


class Content(StrEnum):
    """How text content is written."""

    STRING = "string"
    BLOCKS = "blocks"
    LAST_IN_BLOCKS = "last in blocks"
    """The newest message in blocks, which carry the cache marker; a string from then on."""
    EITHER = "either"
    """Anew for every message of every request."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One program. ``arguments_verbatim``: the text of a call's arguments is kept as it came (not in Messages)."""

    name: str
    dialect: Dialect
    thinking: Thinking = Thinking.VERBATIM
    trims_text: bool = False
    drops_blank_text: bool = False
    arguments_verbatim: bool = False
    keys: Keys = Keys.AS_WRITTEN
    javascript_numbers: bool = False
    results: Order = Order.CALLS
    content: Content = Content.STRING
    cache_markers: bool = False
    billing_header: bool = False
    reminders: bool = False
    """Puts system messages behind what the user says."""
    stream: bool = True


PROFILES: tuple[Profile, ...] = (
    Profile("python sdk", Dialect.MESSAGES, content=Content.STRING, stream=False),
    Profile("simple chat", Dialect.CHAT, Thinking.DROPPED, arguments_verbatim=True, stream=False),
    Profile(
        "claude", Dialect.MESSAGES, drops_blank_text=True, keys=Keys.SCHEMA, javascript_numbers=True, results=Order.COMPLETION,
        content=Content.LAST_IN_BLOCKS, cache_markers=True, billing_header=True, reminders=True,
    ),
    Profile(
        "opencode messages", Dialect.MESSAGES, Thinking.UNSIGNED_DROPPED, javascript_numbers=True, content=Content.BLOCKS,
        cache_markers=True,
    ),
    Profile("opencode chat", Dialect.CHAT, javascript_numbers=True, cache_markers=True),
    Profile("qwen chat", Dialect.CHAT, Thinking.TRIMMED, javascript_numbers=True, content=Content.BLOCKS),
    Profile(
        "qwen messages", Dialect.MESSAGES, Thinking.TRIMMED, javascript_numbers=True, content=Content.BLOCKS, cache_markers=True,
    ),
    Profile("codex", Dialect.RESPONSES, arguments_verbatim=True, content=Content.BLOCKS),
    Profile(
        "opencode responses", Dialect.RESPONSES, Thinking.UNSIGNED_DROPPED, javascript_numbers=True, content=Content.BLOCKS,
    ),
    Profile(
        "hostile messages", Dialect.MESSAGES, Thinking.DROPPED, trims_text=True, drops_blank_text=True, keys=Keys.SHUFFLED,
        javascript_numbers=True, results=Order.SHUFFLED, content=Content.EITHER, cache_markers=True, billing_header=True,
        reminders=True,
    ),
    Profile(
        "hostile chat", Dialect.CHAT, Thinking.DROPPED, trims_text=True, drops_blank_text=True, keys=Keys.SHUFFLED,
        javascript_numbers=True, results=Order.SHUFFLED, content=Content.EITHER, cache_markers=True, billing_header=True,
        reminders=True,
    ),
    Profile(
        "hostile responses", Dialect.RESPONSES, Thinking.DROPPED, trims_text=True, drops_blank_text=True, keys=Keys.SHUFFLED,
        javascript_numbers=True, results=Order.SHUFFLED, content=Content.EITHER, reminders=True, stream=False,
    ),
)  # fmt: skip
