"""What can go wrong between the adapter and the engine. HTTP statuses are the adapter's business.

EngineError
├── EngineUnavailable      no connection, or the server or model is not ready: nothing was sampled
├── EngineRejected         the model refused the request (prompt too long, ids out of range, ...): nothing was sampled
├── EngineTimeout          no first token, or silence between tokens, past the deadline
├── EngineFailed           the generation broke after it was accepted
├── EngineProtocolError    the engine answered, but what it said cannot be true (counts, ids, log probs)
├── ProbeFailed            the model answers, but not in a way that may be served and trained on
└── EngineSetupError       before any request
    ├── RepositoryError    the model repository cannot be rendered as asked
    ├── EndpointListError  the list of endpoints cannot be read, is empty, or has something else in it
    └── LaunchFailed       a tritonserver was not found, did not start, or did not load the model
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all engine errors. ``str(error)`` says what happened, and what to do where that is known."""


class EngineUnavailable(EngineError):
    """The server cannot be reached or is not ready."""


class EngineRejected(EngineError):
    """The model refused the request as invalid."""


class EngineTimeout(EngineError):
    """A deadline passed while waiting for tokens."""


class EngineFailed(EngineError):
    """The generation ended without its last chunk."""


class EngineProtocolError(EngineError):
    """The engine's answer contradicts the contract."""


class ProbeFailed(EngineError):
    """The served model is not fit to be served; the message says why and what to do next."""


class EngineSetupError(EngineError):
    """Setting up a server of our own failed."""


class RepositoryError(EngineSetupError):
    """Unknown model, unknown or missing parameter, or an unusable target folder."""


class EndpointListError(EngineSetupError):
    """The endpoints cannot be told from what was given; the message names the file, or the setting, and the entry."""


class LaunchFailed(EngineSetupError):
    """No usable tritonserver, or it did not become ready; the message carries the server's own reason."""
