"""System messages inside a history, for chat templates that take one at the head only.

Under the history policy ``template`` they are folded into their surroundings; under ``keep`` they are rendered where they stand.
"""

from __future__ import annotations

import dataclasses

from adapter.protocols.common import join_parts
from adapter.types import ChatRequest, Message

Handles = tuple[str, ...]


def folded(request: ChatRequest) -> ChatRequest:
    """``request`` with at most one system message, at the head; its handles stay with their messages."""
    messages = list(request.messages)
    handles = list(request.handles) or [()] * len(messages)
    if not fold_system_messages(messages, handles):
        return request
    return dataclasses.replace(request, messages=tuple(messages), handles=tuple(handles) if request.handles else ())


def fold_system_messages(messages: list[Message], handles: list[Handles] | None = None) -> bool:
    """Leave at most one system message, at the head. True if something changed. ``handles`` runs parallel to ``messages``.

    A later one becomes a ``<system-reminder>`` in the user turn that it follows: a part of its last user message, or a user message
    after its tool results. After an assistant message it is a user message of its own: nothing before the reply may change. With
    no turn before it, its text is added to the head.
    """
    if not any(message["role"] == "system" for message in messages[1:]):
        return False
    head: list[str] = []
    fold: list[tuple[Message, Handles]] = []
    for message, issued in zip(messages, handles or [()] * len(messages), strict=True):
        if message["role"] != "system":
            fold.append((message, issued))
        elif fold:
            _remind(fold, message["content"])
        else:
            head.append(message["content"])
    if head:
        fold.insert(0, ({"role": "system", "content": join_parts(head)}, ()))
    messages[:] = [message for message, _ in fold]
    if handles is not None:
        handles[:] = [issued for _, issued in fold]
    return True


def _remind(fold: list[tuple[Message, Handles]], text: str) -> None:
    """Add ``text`` at the end of ``fold``, which is not empty."""
    reminder = f"<system-reminder>\n{text}\n</system-reminder>"
    last, issued = fold[-1]
    if last["role"] == "user":
        fold[-1] = ({**last, "content": join_parts((last["content"], reminder))}, issued)
    else:
        fold.append(({"role": "user", "content": reminder}, ()))
