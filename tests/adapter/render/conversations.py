"""Random conversations: what an agent's session could hold, for any chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from adapter.types import Message, Tool

PIECES = st.sampled_from(
    [
        *(
            "Hello",
            " world",
            "\n",
            "\n\n\n",
            "  ",
            "\t",
            "1234567",
            "'ll",
            "你好,世界。",
            "👩‍💻",
            "e\u0301",
            "\u00a0",
            "ﬁ",
            "𝔘",
        ),
        *('{"a": [1, 2.5]}', "def f(x):\n    return x << 2", "<b>", "</b>", "<|", "|>", "<", ">", "[INST", "\\ufdd0"),
    ]
)
"""What tokenizers have been seen to treat in a way of its own. None spells a control token, alone or joined."""
TEXTS = st.lists(PIECES, max_size=8).map("".join)
WORDS = st.sampled_from(["I think so", "Let me see", "Ja, klar", "好的", "A", "0", "«quoted»"])
"""How a model's text begins in these tests: with no white space, which some templates trim."""
NAMES = st.sampled_from(["read_file", "look", "查找"])
OPTIONS = st.sampled_from([{}, {"enable_thinking": False}, {"enable_thinking": True}])


def tool(name: str) -> Tool:
    properties = {"path": {"type": "string", "description": "Where."}}
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOLS: tuple[Tool, ...] = (tool("read_file"), tool("look"), tool("查找"))


@dataclass(frozen=True)
class Step:
    """One turn: what is new for the model, and what it answers."""

    new: list[Message]
    answer: Message


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def result(text: str) -> Message:
    return {"role": "tool", "content": text}


def call(name: str, path: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": {"path": path}}}


CALLS = st.lists(st.builds(call, NAMES, TEXTS), min_size=1, max_size=3)


@st.composite
def answers(draw: st.DrawFn, with_calls: bool, with_reasoning: bool) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": draw(WORDS) + draw(TEXTS)}
    if with_reasoning and draw(st.booleans()):
        message["reasoning_content"] = draw(WORDS) + draw(TEXTS)
    if with_calls:
        message["tool_calls"] = draw(CALLS)
        if draw(st.booleans()):
            message["content"] = ""
    return message


@st.composite
def sessions(draw: st.DrawFn, tools: bool, reasoning: bool) -> list[Step]:
    """Up to five turns. The first begins with a system message or not; results answer calls, sometimes with a user's text after."""
    opening = [{"role": "system", "content": draw(TEXTS)}] if draw(st.booleans()) else []
    new: list[Message] = [*opening, user(draw(TEXTS))]
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 5))):
        answer = draw(answers(with_calls=tools and draw(st.booleans()), with_reasoning=reasoning))
        steps.append(Step(new, answer))
        new = [result(draw(TEXTS)) for _ in answer.get("tool_calls", [])]
        if not new or draw(st.sampled_from([False, False, True])):
            new.append(user(draw(TEXTS)))
    return steps
