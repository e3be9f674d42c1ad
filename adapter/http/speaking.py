"""Which protocol a route speaks: for errors that are found before its handler is reached."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.base import WireProtocol
from adapter.protocols.console import ConsoleChat
from adapter.protocols.gemini import Gemini
from adapter.protocols.openai_chat import OpenAIChat
from adapter.protocols.openai_responses import OpenAIResponses

_BEGINNINGS: Mapping[str, WireProtocol] = MappingProxyType(
    {
        "/v1/messages": AnthropicMessages(),
        "/v1/chat/": OpenAIChat(),
        "/v1/responses": OpenAIResponses(),
        "/v1beta/": Gemini(),
        "/api/console/": ConsoleChat(),
    }
)


def protocol_of(path: str) -> WireProtocol | None:
    """``path`` as a route writes it, with names in braces. None for what is no protocol's own."""
    path = path.removeprefix("/s/{sid}")
    if path.endswith(("}:generateContent", "}:streamGenerateContent", "}:countTokens")):
        return Gemini()
    return next((protocol for beginning, protocol in _BEGINNINGS.items() if path.startswith(beginning)), None)
