"""What both dialects do to texts and thoughts, for one request."""

from __future__ import annotations

import random
from typing import Any

from tests.support.simulated_client.entries import Call, Reply, Thought
from tests.support.simulated_client.profile import Content, Profile, Thinking

MARKER = {"type": "ephemeral"}


class Writing:
    """Writes one request. ``newest`` is the number of the entry that the cache marker stands at."""

    def __init__(self, profile: Profile, generator: random.Random, newest: int) -> None:
        self.profile = profile
        self.generator = generator
        self._newest = newest

    @property
    def billing_header(self) -> str:
        """Claude Code's: it names a hash that differs from conversation to conversation, here from request to request."""
        return (
            f"x-anthropic-billing-header: cc_version=2.1.332.{self.generator.randrange(4096):03x}; cc_entrypoint=cli;"
        )

    def content(self, text: str, number: int) -> str | list[dict[str, Any]]:
        """A text as content: a string or a block."""
        newest = number == self._newest
        match self.profile.content:
            case Content.STRING:
                blocks = newest and self.profile.cache_markers
            case Content.BLOCKS:
                blocks = True
            case Content.LAST_IN_BLOCKS:
                blocks = newest
            case Content.EITHER:
                blocks = self.generator.random() < 0.5
        return [self.marked({"type": "text", "text": text}, newest)] if blocks else text

    def marked(self, block: dict[str, Any], here: bool) -> dict[str, Any]:
        return {**block, "cache_control": MARKER} if here and self.profile.cache_markers else block

    def is_newest(self, number: int) -> bool:
        return number == self._newest

    def replayed(self, reply: Reply) -> list[str | Thought | Call]:
        """The parts of a reply that are sent, as they are sent (calls aside)."""
        parts: list[str | Thought | Call] = []
        for part in reply.parts:
            match part:
                case str():
                    parts += self._text(part, alone=len(reply.parts) == 1)
                case Thought():
                    parts += self._thought(part)
                case Call():
                    parts.append(part)
        return parts

    def _text(self, text: str, alone: bool) -> list[str]:
        if self.profile.drops_blank_text and not text.strip() and not alone:
            return []
        return [text.strip() if self.profile.trims_text else text]

    def _thought(self, thought: Thought) -> list[Thought]:
        match self.profile.thinking:
            case Thinking.VERBATIM:
                return [thought]
            case Thinking.TRIMMED:
                return [Thought(thought.text.strip(), thought.signature)]
            case Thinking.UNSIGNED_DROPPED:
                return [thought] if thought.signature else []
            case Thinking.DROPPED:
                return []
