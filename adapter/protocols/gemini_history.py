"""Gemini, the history of a request: system instruction and contents become neutral messages.

A content of the role ``user`` may hold results and text: its results become tool messages, in the order of their calls, its text
one user message after them. Contents of the role ``model`` that follow one another are one assistant message: the SDKs' chats
replay a streamed reply as they got it, a content for each chunk. A trailing one is the beginning of the reply (prefill).

Ids of calls are optional: a result without one that is known answers the first call of its name that has no result yet.

What the model reads of a result is the text that its members ``output`` or ``result`` hold, where that is all there is (gemini-cli
and the SDKs' own function calling write results so), and JSON otherwise: of ``{"error": ...}`` it shall see that it is an error.
"""

from __future__ import annotations

from typing import Any

from adapter.errors import BadRequest
from adapter.jsontext import dump_json
from adapter.protocols.common import assistant_message, join_parts, tool_call
from adapter.protocols.gemini_fields import ProtoFields
from adapter.protocols.history import History
from adapter.protocols.normalise import Normaliser
from adapter.types import Message

_MODEL = "model"
_ROLES = ("user", _MODEL, "function")
"""``function`` is what old clients call a content with results."""

_PLAIN_RESULTS = ("output", "result")
_DATA = (
    "inline_data", "file_data", "executable_code", "code_execution_result", "video_metadata", "tool_call", "tool_response",
)  # fmt: skip
"""What parts can hold beside text, calls and results; all of it is refused."""


class _Reply:
    """One assistant message as its contents say it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.handles: list[str] = []

    def message(self) -> Message:
        return assistant_message("".join(self.texts), "".join(self.thoughts), self.calls)


class GeminiHistory(History):
    """Translates the wire's system instruction and contents."""

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__(normaliser)
        self._open_calls: list[tuple[str, str]] = []
        """Id and name of calls without a result, in their order."""
        self._named = 0

    def read(self, fields: ProtoFields) -> None:
        """Raises: BadRequest."""
        self._read_system(fields)
        contents = fields.messages("contents")
        if not contents:
            raise fields.wrong("contents", "at least one content is required")
        reply: _Reply | None = None
        for content in contents:
            if content.text_or_none("role") == _MODEL:
                reply = reply or _Reply()
                self._read_model(content, reply)
            else:
                self._add_reply(reply)
                reply = None
                self._read_user(content)
        self._add_reply(reply)
        self.end_results()
        if reply is not None:
            self.continue_last(fields, f"contents.{len(contents) - 1}")
        if not self.messages:
            raise fields.wrong("contents", "must not be empty")

    def _add_reply(self, reply: _Reply | None) -> None:
        if reply is not None:
            self.add(reply.message(), reply.handles)

    def _read_system(self, fields: ProtoFields) -> None:
        instruction = fields.object_or_none("system_instruction")
        if instruction is None:
            return
        kept = []
        for part in instruction.messages("parts"):
            _refuse_data(part, ("text",))
            kept.append(self._normaliser.system_text(part.text("text"), part, "text"))
        if any(kept):
            self.add({"role": "system", "content": join_parts(kept)})

    def _read_user(self, content: ProtoFields) -> None:
        if content.text_or_none("role") not in (None, "", *_ROLES):
            raise content.wrong("role", "must be user or model")
        texts: list[str] = []
        results = 0
        for part in _parts(content):
            _refuse_data(part, ("text", "function_response"))
            result = part.object_or_none("function_response")
            if result is not None:
                self._read_result(result)
                results += 1
            else:
                texts.append(part.text("text"))
        if texts:
            self.add({"role": "user", "content": join_parts(texts)})
        elif not results:
            raise content.wrong("parts", "must not be empty")

    def _read_result(self, result: ProtoFields) -> None:
        if result.flag("will_continue"):
            raise result.wrong("will_continue", "results in several parts are not supported by this server")
        if result.messages("parts"):
            raise result.wrong("parts", "media in results are not supported by this server")
        call_id = self._answered_call(result.text_or_none("id"), result.name_text("name"))
        if call_id is None or not self.add_result(call_id, _result_text(result), result):
            raise result.wrong("name", "no functionCall before it has this name or id, and no result yet")

    def _answered_call(self, call_id: str | None, name: str) -> str | None:
        """The call that a result is for."""
        by_id = [call for call in self._open_calls if call[0] == call_id]
        by_name = [call for call in self._open_calls if call[1] == name]
        if not by_id and call_id in self._calls:
            return call_id
        for call in (*by_id, *by_name):
            self._open_calls.remove(call)
            return call[0]
        return None

    def _read_model(self, content: ProtoFields, reply: _Reply) -> None:
        for part in _parts(content):
            _refuse_data(part, ("text", "function_call"))
            signature = part.text_or_none("thought_signature")
            if signature:
                reply.handles.append(signature)
            call = part.object_or_none("function_call")
            if call is not None:
                self._read_call(call, reply)
            elif part.has("text"):
                (reply.thoughts if part.flag("thought") else reply.texts).append(part.text("text"))
            elif not signature:
                raise part.wrong("text", "a part must hold text or a functionCall")

    def _read_call(self, call: ProtoFields, reply: _Reply) -> None:
        name = call.name_text("name")
        given = call.text_or_none("id")
        if given:
            reply.handles.append(given)
        self._named += 1
        call_id = given or f"{name}#{self._named}"
        self.add_call(call_id)
        self._open_calls.append((call_id, name))
        reply.calls.append(tool_call(name, call.json_object_or_none("args") or {}))


def _parts(content: ProtoFields) -> list[ProtoFields]:
    if not content.has("parts"):
        raise content.wrong("parts", "is required: an array of parts")
    return content.messages("parts")


def _refuse_data(part: ProtoFields, allowed: tuple[str, ...]) -> None:
    """Raises: BadRequest, for what a part must not hold where it stands."""
    for name in ("text", "function_call", "function_response", *_DATA):
        if name not in allowed and part.has(name):
            raise _unsupported(part, name)


def _unsupported(part: ProtoFields, name: str) -> BadRequest:
    return part.wrong(name, "is not supported by this server" if name in _DATA else "cannot stand here")


def _result_text(result: ProtoFields) -> str:
    response = result.json_object_or_none("response") or {}
    if len(response) == 1:
        (name, value), *_ = response.items()
        if name in _PLAIN_RESULTS:
            return value if isinstance(value, str) else dump_json(value).decode()
    return dump_json(response).decode()
