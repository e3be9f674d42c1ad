"""Errors in each protocol's own body."""

from __future__ import annotations

import pytest

from adapter.errors import (
    AdapterError,
    BadRequest,
    BodyTooLarge,
    Conflict,
    Gone,
    NotFound,
    PromptTooLong,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UpstreamFailed,
    UpstreamTimeout,
)
from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.base import WireProtocol
from adapter.protocols.console import ConsoleChat
from adapter.protocols.gemini import Gemini
from adapter.protocols.openai_chat import OpenAIChat
from adapter.protocols.openai_responses import OpenAIResponses


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Unauthorized("x"), "authentication_error"),
        (NotFound("x"), "not_found_error"),
        (Conflict("x"), "conflict_error"),
        (Gone("x"), "not_found_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (TooManyRequests("x"), "rate_limit_error"),
        (AdapterError("x"), "api_error"),
        (UpstreamFailed("x"), "api_error"),
        (Unavailable("x"), "overloaded_error"),
        (UpstreamTimeout("x"), "timeout_error"),
    ],
)
def test_anthropic_error_types(error: AdapterError, kind: str) -> None:
    assert AnthropicMessages().render_error(error) == {"type": "error", "error": {"type": kind, "message": "x"}}


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (BadRequest("x"), "invalid_request_error", None),
        (Unauthorized("x"), "authentication_error", "invalid_api_key"),
        (NotFound("x"), "not_found_error", "not_found"),
        (Conflict("x"), "conflict_error", "conflict"),
        (Gone("x"), "not_found_error", "gone"),
        (BodyTooLarge("x"), "invalid_request_error", "request_too_large"),
        (TooManyRequests("x"), "rate_limit_error", "rate_limit_exceeded"),
        (AdapterError("x"), "server_error", None),
        (UpstreamFailed("x"), "server_error", "upstream_failed"),
        (Unavailable("x"), "server_error", "service_unavailable"),
        (UpstreamTimeout("x"), "server_error", "timeout"),
    ],
)
def test_openai_error_types(error: AdapterError, kind: str, code: str | None) -> None:
    body = OpenAIChat().render_error(error)
    assert body == {"error": {"message": "x", "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("x"), "INVALID_ARGUMENT"),
        (Unauthorized("x"), "UNAUTHENTICATED"),
        (NotFound("x"), "NOT_FOUND"),
        (Conflict("x"), "ABORTED"),
        (Gone("x"), "NOT_FOUND"),
        (BodyTooLarge("x"), "INVALID_ARGUMENT"),
        (TooManyRequests("x"), "RESOURCE_EXHAUSTED"),
        (AdapterError("x"), "INTERNAL"),
        (UpstreamFailed("x"), "UNAVAILABLE"),
        (Unavailable("x"), "UNAVAILABLE"),
        (UpstreamTimeout("x"), "DEADLINE_EXCEEDED"),
    ],
)
def test_gemini_error_statuses(error: AdapterError, status: str) -> None:
    assert Gemini().render_error(error) == {"error": {"code": error.status, "message": "x", "status": status}}


def test_gemini_errors_name_the_field_and_the_time_to_wait() -> None:
    wrong = Gemini().render_error(BadRequest("must be a string", field="contents.0.role"))["error"]
    assert wrong["message"] == "contents.0.role: must be a string"
    assert wrong["details"] == [
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "contents.0.role", "description": "must be a string"}],
        }
    ]
    busy = Gemini().render_error(TooManyRequests("busy", retry_after=1.5))["error"]
    assert busy["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}]


def test_the_field_is_named_once() -> None:
    error = BadRequest("must be a string", field="messages.0.role")
    repeated = BadRequest("messages.0.role must be a string", field="messages.0.role")
    assert AnthropicMessages().render_error(error)["error"]["message"] == "messages.0.role: must be a string"
    assert AnthropicMessages().render_error(repeated)["error"]["message"] == "messages.0.role must be a string"
    chat = OpenAIChat().render_error(error)["error"]
    assert chat["message"] == "messages.0.role: must be a string"
    assert chat["param"] == "messages.0.role"


def test_a_refused_thread_is_one_that_tool_runners_do_without() -> None:
    error = AnthropicMessages().render_error(BadRequest("is not supported", field="thread"))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "details" not in AnthropicMessages().render_error(BadRequest("x", field="threads"))["error"]


def test_an_unknown_model_has_its_own_code() -> None:
    error = NotFound("there is no model 'x'", field="model")
    assert OpenAIChat().render_error(error)["error"]["code"] == "model_not_found"


def test_a_prompt_that_is_too_long_makes_clients_compact() -> None:
    error = PromptTooLong(210_000, 200_000)
    assert AnthropicMessages().render_error(error) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    }
    assert Gemini().render_error(error)["error"]["message"] == (
        "The input token count (210000) exceeds the maximum number of tokens allowed (200000)."
    )
    body = OpenAIChat().render_error(error)["error"]
    assert body["code"] == "context_length_exceeded"
    assert body["message"].startswith(
        "This model's maximum context length is 200000 tokens. However, your messages resulted in 210000 tokens."
    )


@pytest.mark.parametrize(
    ("protocol", "field"),
    [
        (AnthropicMessages(), "messages"),
        (OpenAIChat(), "messages"),
        (OpenAIResponses(), "input"),
        (Gemini(), "contents"),
        (ConsoleChat(), "input"),
    ],
)
def test_an_error_about_the_conversation_names_the_field_that_holds_it(protocol: WireProtocol, field: str) -> None:
    body = str(protocol.render_error(BadRequest("the template refuses this conversation", field="messages")))
    assert f"{field}: the template refuses" in body
    assert ("messages" in body) == (field == "messages")
