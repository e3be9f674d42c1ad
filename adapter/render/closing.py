"""What stands between an assistant's turn and the next message, learned from a chat template once.

The template renders a fixed short history, a user's message and an assistant's, whose content (and last tool argument) ends with an
edge mark. Behind the edge stand

    glue        the rest of what the model would have written: quotes and braces, ``</tool_call>``; empty for plain content
    closer      what closes the turn: ``<|im_end|>``, newline
    ...         the following messages

The glue ends where the closer's first token begins: an end token, or the one that stands for it in a history (gpt-oss samples
``<|return|>`` where a history has ``<|end|>``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adapter.errors import BadRequest
from adapter.render.control import Marks
from adapter.render.encoding import Encoder
from adapter.render.shape import tool_calls
from adapter.render.text import PromptText, RenderOptions
from adapter.types import Message, Tool
from engine.types import Ids

USER: Message = {"role": "user", "content": "x"}
RESULT: Message = {"role": "tool", "content": "x"}
SYSTEM: Message = {"role": "system", "content": "x"}
NAME = "x"
STAND_IN_TOOL: Tool = {
    "type": "function",
    "function": {"name": NAME, "description": "x", "parameters": {"type": "object", "properties": {}}},
}


class SuffixRefused(Exception):
    """New messages of this kind cannot be rendered alone with this template; the message says why. A full render can serve."""


@dataclass(frozen=True, slots=True)
class FixedHistory:
    """A short history that the template takes."""

    has_call: bool
    """The assistant's message calls tools."""
    has_system: bool = False
    is_parallel: bool = True
    """Several tools in one message."""

    def messages(self, edge: str, names: Sequence[str]) -> list[Message]:
        """``names`` are those of the called tools, for templates that name them in the results."""
        assistant: Message = {"role": "assistant", "content": edge}
        if self.has_call:
            assistant["tool_calls"] = tool_calls(names if self.is_parallel else names[:1], edge)
        return [*([SYSTEM] if self.has_system else []), USER, assistant]


@dataclass(frozen=True, slots=True)
class Closing:
    """How an assistant's turn ends."""

    history: FixedHistory
    glue: str
    closer: str
    ids: Ids
    """The closer, int32 [C]."""
    ended: int
    """How many of ``ids`` an output that ends with an end token has already: up to the closer's first control token."""


def learn_closing(text: PromptText, encoder: Encoder, end_ids: Sequence[int], plain: Closing | None = None) -> Closing:
    """The closing of a plain reply; with that of a plain one given, of one that calls tools.

    Raises: SuffixRefused.
    """
    return _Learner(text, encoder, end_ids).learn(plain)


class _Learner:
    def __init__(self, text: PromptText, encoder: Encoder, end_ids: Sequence[int]) -> None:
        self._text = text
        self._encoder = encoder
        self._ends = frozenset(end_ids)
        self._marks = text.marks((), RenderOptions())

    def learn(self, plain: Closing | None) -> Closing:
        history, alone, followed = self._behind_edge(has_call=plain is not None)
        closed = self._shared(alone, followed)
        glue = "" if plain is None else self._glue(closed, plain)
        closer = closed.removeprefix(glue)
        ends = [piece.start + len(piece.text) for piece in self._encoder.pieces(closer) if piece.id is not None]
        ended = closer[: ends[0]] if ends else ""
        return Closing(
            history=history,
            glue=glue,
            closer=closer,
            ids=self._encoder.encode(closer, at_start=False),
            ended=int(self._encoder.encode(ended, at_start=False).size),
        )

    def _behind_edge(self, has_call: bool) -> tuple[FixedHistory, str, str]:
        """The first history that the template takes, and what it renders behind the edge: alone, and with a message to follow."""
        refusal: BadRequest | None = None
        for has_system in (False, True):
            history = FixedHistory(has_call, has_system)
            try:
                alone = self._tail(history, [NAME], follows=False)
                followed = self._tail(history, [NAME], follows=True)
                return replace(history, is_parallel=self._is_parallel(history)), alone, followed
            except BadRequest as error:
                refusal = error
        raise SuffixRefused(str(refusal))

    def _is_parallel(self, history: FixedHistory) -> bool:
        try:
            self._tail(history, [NAME, NAME], follows=True)
        except BadRequest:
            return False
        return True

    def _tail(self, history: FixedHistory, names: Sequence[str], follows: bool) -> str:
        messages = history.messages(self._marks.edge, names)
        if follows:
            messages += [RESULT] * len(names) if history.has_call else [USER]
        options = RenderOptions((STAND_IN_TOOL,), add_generation_prompt=follows)
        return behind_edge(self._text.render(messages, options, self._marks), self._marks)

    def _shared(self, alone: str, followed: str) -> str:
        """What closes the turn: ``alone``, as far as it is the same with a message behind it; a control token may differ there."""
        end = 0
        for piece, other in zip(self._encoder.pieces(alone), self._encoder.pieces(followed), strict=False):
            if (piece.id is None) != (other.id is None) or (piece.id is None and not other.text.startswith(piece.text)):
                break
            end = other.start + len(piece.text if piece.id is None else other.text)
            if piece.text != other.text:
                break
        return followed[:end]

    def _glue(self, closed: str, plain: Closing) -> str:
        """Where the closer begins: at the last token that ends a turn, else at the last control token."""
        if not plain.closer:
            return closed
        ends = self._ends.union(plain.ids[plain.ended - 1 : plain.ended].tolist())
        control = [piece for piece in self._encoder.pieces(closed) if piece.id is not None]
        ending = [piece for piece in control if piece.id in ends]
        if not control:
            raise SuffixRefused("nothing tells where a tool call ends and the turn's closer begins")
        return closed[: (ending or control)[-1].start]


def behind_edge(text: str, marks: Marks) -> str:
    """Raises: SuffixRefused, if the template shows neither content nor arguments of the assistant."""
    start = marks.after_edge(text)
    if start is None:
        raise SuffixRefused("the template leaves out what the assistant said")
    return text[start:]
