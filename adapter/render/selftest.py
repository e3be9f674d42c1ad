"""Is a template's suffix what the whole conversation would have behind the same turn? Asked at start, on generated conversations.

For a conversation whose last assistant message ends with an edge mark, and new messages behind it,

    encode(full text up to the closer) ++ suffix(new messages)  ==  encode(full text)

must hold. Everything before the edge is free to be rendered in any way: templates drop old thinking there, which the history policy
``keep`` does not. Conversations that the template itself refuses prove nothing and are left out. A kind of new message (by role)
that fails is refused later on, when a session has it; if users' messages fail, the template has no suffixes at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from adapter.errors import BadRequest
from adapter.render.closing import SuffixRefused, behind_edge
from adapter.render.control import Marks
from adapter.render.encoding import Encoder
from adapter.render.suffix import Before, SuffixRenderer
from adapter.render.text import PromptText, RenderOptions
from adapter.types import Message, Tool
from engine.types import Ids

CONVERSATIONS = 12
"""Histories for each kind of new messages; all of them take some 0.1 s."""
_NOTHING = np.zeros(0, np.int32)
_TEXTS = (
    "Hello, how are you?",
    "two lines\n\nand three newlines\n\n\n",
    "  spaces around\t",
    "你好,世界。これはテストです。",
    "👩‍👩‍👧 e\u0301 \u00a0ﬁ 𝔘",
    '{"path": "a/b.txt", "n": [1, 2.5, null]}',
    "def f(x):\n\treturn x << 2  # <b>bold</b>\n",
    "literal tags: <tool_call> </tool_call> <think> </think> <tool_response>",
    "1234567890",
    "'ll",
)
_TOOLS: tuple[Tool, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name in ("read_file", "查找")
)


@dataclass(frozen=True, slots=True)
class SuffixSupport:
    """What the self-test found."""

    ok: bool
    """New users' messages, at least, can be rendered alone."""
    reason: str = ""
    """Why not, or what is refused though the rest is well; empty if all is."""
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Roles of new messages that need a full render, each with the reason."""

    def require(self, messages: Sequence[Message]) -> None:
        """Raises: SuffixRefused, if new ``messages`` need a full render."""
        if not self.ok:
            raise SuffixRefused(self.reason)
        for message in messages:
            if message["role"] in self.refused:
                raise SuffixRefused(self.refused[message["role"]])


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation, and what comes after it. ``kind`` is the role whose rendering it tests."""

    kind: str
    history: tuple[Message, ...]
    """Ends with an assistant message whose text, or last argument, ends with the edge mark."""
    new: tuple[Message, ...]
    options: RenderOptions
    called: tuple[str, ...] = ()


def check_suffixes(text: PromptText, encoder: Encoder, suffixes: SuffixRenderer) -> SuffixSupport:
    """Compare suffixes with full renders. About 0.1 s for a template of usual length."""
    faults: dict[str, str] = {}
    compared: set[str] = set()
    marks = text.control.marks(_TEXTS)
    for case in generated_cases(marks.edge, tuple(encoder.control.ids)):
        if case.kind in faults:
            continue
        outcome = _compare(text, encoder, suffixes, case, marks)
        if outcome is not None:
            compared.add(case.kind)
        if outcome:
            faults[case.kind] = outcome
    if "user" not in compared:
        return SuffixSupport(False, "the template refuses every conversation of the self-test")
    if "user" in faults:
        return SuffixSupport(False, faults["user"])
    reason = "; ".join(f"new {kind} messages: {fault}" for kind, fault in faults.items())
    return SuffixSupport(True, reason, MappingProxyType(faults))


def _compare(text: PromptText, encoder: Encoder, suffixes: SuffixRenderer, case: Case, marks: Marks) -> str | None:
    """What is wrong, "" if nothing is, None if the template refuses the conversation as a whole."""
    try:
        full = text.render([*case.history, *case.new], case.options, marks)
    except BadRequest:
        return None
    try:
        suffix = suffixes.render(case.new, case.options, Before(_NOTHING, case.called))
        tail = behind_edge(full, marks)
    except (BadRequest, SuffixRefused) as error:
        return str(error)
    expected = encoder.encode(full, marks)
    until = len(full) - len(tail) + len(suffixes.glue(case.new))
    ours = np.concatenate([encoder.encode(full[:until], marks), suffix.ids])
    return "" if np.array_equal(ours, expected) else _difference(encoder, ours, expected)


def _difference(encoder: Encoder, ours: Ids, expected: Ids) -> str:
    size = min(ours.size, expected.size)
    differs = np.flatnonzero(ours[:size] != expected[:size])
    at = int(differs[0]) if differs.size else size
    shown = [
        encoder.tokenizer.decode(ids[max(at - 3, 0) : at + 5].tolist(), skip_special_tokens=False)
        for ids in (ours, expected)
    ]
    return f"rendered alone they give {shown[0]!r}, in the conversation {shown[1]!r}"


def generated_cases(edge: str, control: Sequence[str]) -> Iterator[Case]:
    """The same conversations at every start."""
    draw = random.Random(0)
    for number in range(CONVERSATIONS):
        for kind in ("user", "tool", "system", "assistant"):
            yield _case(draw, kind, edge, control, plain=number == 0)


def _case(draw: random.Random, kind: str, edge: str, control: Sequence[str], plain: bool) -> Case:
    rounds = 0 if plain else draw.randrange(3)
    tools = _TOOLS if kind == "tool" or draw.random() < 0.5 else ()
    history: list[Message] = [{"role": "system", "content": _text(draw, control)}] if draw.random() < 0.5 else []
    for _ in range(rounds):
        history += _round(draw, control, with_calls=bool(tools))
    history.append({"role": "user", "content": _text(draw, control)})
    last = _assistant(draw, control, calls=draw.choice((1, 1, 2, 3)) if kind == "tool" else 0, edge=edge)
    called = tuple(call["function"]["name"] for call in last.get("tool_calls", ()))
    variables = draw.choice(({}, {}, {"enable_thinking": False}, {"enable_thinking": True}))
    new = tuple(_new_messages(draw, kind, control, len(called)))
    return Case(kind, (*history, last), new, RenderOptions(tools, variables), called)


def _new_messages(draw: random.Random, kind: str, control: Sequence[str], results: int) -> Iterator[Message]:
    user: Message = {"role": "user", "content": _text(draw, control)}
    for _ in range(results):
        yield {"role": "tool", "content": _text(draw, control)}
    if kind == "system":
        system: Message = {"role": "system", "content": _text(draw, control)}
        yield from draw.choice(((system, user), (user, system)))
    elif kind == "assistant":
        yield from (user, _assistant(draw, control, calls=0), {"role": "user", "content": _text(draw, control)})
    elif kind == "user" or draw.random() < 0.3:
        yield user


def _round(draw: random.Random, control: Sequence[str], with_calls: bool) -> Iterator[Message]:
    yield {"role": "user", "content": _text(draw, control)}
    for _ in range(draw.randrange(3) if with_calls else 0):
        message = _assistant(draw, control, calls=draw.choice((1, 1, 2)))
        yield message
        for _ in message["tool_calls"]:
            yield {"role": "tool", "content": _text(draw, control)}
    yield _assistant(draw, control, calls=0)


def _assistant(draw: random.Random, control: Sequence[str], calls: int, edge: str = "") -> Message:
    content = _text(draw, control) if calls == 0 or draw.random() < 0.3 else ""
    message: dict[str, Any] = {"role": "assistant", "content": content + edge}
    if draw.random() < 0.5:
        message["reasoning_content"] = _text(draw, control)
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": _name(draw), "arguments": {"path": _text(draw, control) + edge}}}
            for _ in range(calls)
        ]
    return message


def _name(draw: random.Random) -> str:
    return str(draw.choice(_TOOLS)["function"]["name"])


def _text(draw: random.Random, control: Sequence[str]) -> str:
    text = draw.choice(_TEXTS)
    if control and draw.random() < 0.3:
        return f"{text} {draw.choice(control)}{draw.choice(_TEXTS)}"
    return text
