"""What a client can be told. Each protocol renders an error in its own body; the kinds and statuses are one table here.

AdapterError
├── SessionDamaged        500  what was recorded of the session cannot be read
├── BadRequest            400  a field is wrong; ``field`` names it
│   ├── PromptTooLong     400  in the words that make agent CLIs compact their history
│   └── PreviousResponseNotFound  400  by the id under which OpenAI Responses stored it
├── Unauthorized          401  no access key, or none that is known
├── Forbidden             403  a session's key where the admin key is needed
├── NotFound              404  unknown session, model or path
├── Conflict              409  the session is in a state that excludes this call
├── Gone                  410  the session is finished, or what is asked for is no longer kept
│   └── Interrupted       410  the turn was stopped before its end
├── BodyTooLarge          413
├── UnsupportedEncoding   415  the body's content encoding
├── KeyReused             422  an idempotency key came with another request before
├── TooManyRequests       429  with ``retry_after`` seconds
├── UpstreamFailed        502  the engine broke or lied
├── Unavailable           503  the engine cannot be reached
└── UpstreamTimeout       504  the engine is silent
"""

from __future__ import annotations

from engine.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable


class AdapterError(Exception):
    """Base of everything that is answered with an error body. ``str(error)`` is the message for the client."""

    status = 500

    def __init__(self, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.retry_after = retry_after

    @property
    def code(self) -> str:
        """The kind of error as a word: ``bad_request``."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__).lstrip("_")


class BadRequest(AdapterError):
    status = 400


class PromptTooLong(BadRequest):
    """``prompt_tokens`` do not fit into ``max_tokens`` of context."""

    def __init__(self, prompt_tokens: int, max_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {max_tokens} maximum", field="messages")
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class PreviousResponseNotFound(BadRequest):
    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", field="previous_response_id")


class SessionDamaged(AdapterError):
    status = 500


class Unauthorized(AdapterError):
    status = 401


class Forbidden(AdapterError):
    status = 403


class NotFound(AdapterError):
    status = 404


class Conflict(AdapterError):
    status = 409


class Gone(AdapterError):
    status = 410


class Interrupted(Gone):
    """Not a conflict or a timeout: clients send those again by themselves."""


class BodyTooLarge(AdapterError):
    status = 413


class UnsupportedEncoding(AdapterError):
    status = 415


class KeyReused(AdapterError):
    """Not a conflict: clients send those again by themselves."""

    status = 422


class TooManyRequests(AdapterError):
    status = 429


class UpstreamFailed(AdapterError):
    status = 502


class Unavailable(AdapterError):
    status = 503


class UpstreamTimeout(AdapterError):
    status = 504


def from_engine(error: EngineError) -> AdapterError:
    """What a client is told of an engine's failure.

    That the request may be sent again is said in words: some clients (opencode) go by them when a stream ends with an error event.
    """
    if isinstance(error, EngineRejected):
        return BadRequest(f"the engine: {error}")
    told = next((told for kind, told in _ENGINE_ERRORS.items() if isinstance(error, kind)), UpstreamFailed)
    return told(f"the engine: {error}; try your request again")


_ENGINE_ERRORS: dict[type[EngineError], type[AdapterError]] = {
    EngineUnavailable: Unavailable,
    EngineTimeout: UpstreamTimeout,
}
