"""The console's request: new input for a conversation that the server keeps.

    {"input": [{"content": [{"text": "..."}]}], "session_id": "...", "user_id": "...", "channel": "console", "reconnect": false}

An input message has a ``role`` (``user`` if not given, or ``system``) and a ``type``: ``message`` if not given, or
``plugin_call_output`` / ``function_call_output`` with contents of type ``data`` that hold ``{"call_id", "output"}``. A content has
a ``type``, ``text`` if not given. Sampling knobs, ``max_tokens``, ``stop``, ``model`` and ``tools`` are those of Chat Completions;
``stream`` is true if not given.

Refused by name: images, audio and files, assistant messages (the server has them), ``model_slot_override``, a level of thinking.

Source: QwenPaw, ``app/routers/console.py``; agentscope-runtime, ``engine/schemas/agent_schemas.py`` (``AgentRequest``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adapter.protocols.common import function_tool, join_parts
from adapter.protocols.knobs import (
    FOREIGN_KNOBS,
    SAMPLING_KNOBS,
    check_token_limits,
    read_sampling,
    read_stop,
    read_template_options,
    refuse_knobs,
    unused_names,
)
from adapter.protocols.reading import Fields, claim_name
from adapter.types import ChatRequest, Message, Tool

REFUSED: Mapping[str, Collection[Any]] = {
    **FOREIGN_KNOBS,
    **dict.fromkeys(("model_slot_override", "messages", "prompt", "system", "instructions"), ()),
    **dict.fromkeys(("tool_choice", "response_format"), ("auto",)),
    "parallel_tool_calls": (True,),
}

HONOURED = SAMPLING_KNOBS | {
    "input", "model", "max_tokens", "stop", "stream", "tools", "session_id", "reconnect", "chat_template_kwargs", "request_context",
}  # fmt: skip

_OUTPUTS = ("plugin_call_output", "function_call_output")


def wants_reply_again(body: Mapping[str, Any]) -> bool:
    """``reconnect``. Raises: BadRequest, also where the session is no name: no other one's reply is given, and none begun."""
    fields = Fields.of_body(body)
    for name in ("session_id", "user_id"):
        fields.text_or_none(name)
    return fields.flag("reconnect")


def parse_console_request(body: Mapping[str, Any]) -> ChatRequest:
    """``messages`` are the new input only; ``handles`` the call ids of its results. Raises: BadRequest."""
    fields = Fields.of_body(body)
    refuse_knobs(fields, REFUSED)
    messages, handles = _read_input(fields)
    sampling = read_sampling(fields)
    max_tokens = fields.integer_or_none("max_tokens", 1)
    check_token_limits(fields, sampling, max_tokens)
    context = fields.object_or_none("request_context")
    if context is not None and context.has("thinking_level"):
        raise context.wrong("thinking_level", "is not supported by this server; use chat_template_kwargs")
    unused = unused_names(fields, HONOURED | REFUSED.keys())
    return ChatRequest(
        messages=tuple(messages),
        tools=_read_tools(fields),
        model=fields.text_or_none("model"),
        max_tokens=max_tokens,
        sampling=sampling,
        stop=read_stop(fields, "stop"),
        stream=fields.flag("stream", default=True),
        template_options=read_template_options(fields),
        handles=tuple(handles),
        unused_fields=(*unused, *(["request_context"] if context is not None else [])),
    )


def _read_input(fields: Fields) -> tuple[list[Message], list[tuple[str, ...]]]:
    messages: list[Message] = []
    handles: list[tuple[str, ...]] = []
    for message in fields.objects("input"):
        if message.text_or_none("type") in _OUTPUTS:
            for result in message.objects("content"):
                call_id, output = _read_output(result)
                messages.append({"role": "tool", "content": output})
                handles.append((call_id,))
        else:
            messages.append(_read_message(message))
            handles.append(())
    if not messages:
        raise fields.wrong("input", "at least one message is required")
    return messages, handles


def _read_message(message: Fields) -> Message:
    if message.text_or_none("type") not in (None, "message"):
        raise message.wrong("type", f"must be message or one of {', '.join(_OUTPUTS)}")
    role = message.text_or_none("role") or "user"
    if role not in ("user", "system"):
        raise message.wrong("role", "must be user or system; the server keeps what the assistant said")
    content = message.text_or_objects("content")
    texts = [content] if isinstance(content, str) else [_read_text(item) for item in content or ()]
    if not any(texts):
        raise message.wrong("content", "must not be empty")
    return {"role": role, "content": join_parts(texts)}


def _read_text(item: Fields) -> str:
    kind = item.text_or_none("type") or "text"
    if kind != "text":
        raise item.wrong("type", f"{kind[:64]!r} contents are not supported; only text is")
    return item.text("text")


def _read_output(item: Fields) -> tuple[str, str]:
    if item.text("type") != "data":
        raise item.wrong("type", "must be data")
    data = item.object("data")
    return data.name_text("call_id"), data.text("output")


def _read_tools(fields: Fields) -> tuple[Tool, ...]:
    taken: set[str] = set()
    return tuple(_read_tool(tool, taken) for tool in fields.objects("tools"))


def _read_tool(tool: Fields, taken: set[str]) -> Tool:
    if tool.text_or_none("type") not in (None, "function"):
        raise tool.wrong("type", "must be function")
    function = tool.object("function")
    claim_name(function, function.name_text("name"), taken)
    return function_tool(
        function.name_text("name"),
        function.text_or_none("description") or "",
        function.json_object_or_none("parameters") or {"type": "object", "properties": {}},
    )
