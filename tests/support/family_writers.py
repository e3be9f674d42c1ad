"""Whole replies as the models of each parser family write them: reasoning, text and calls in the family's own markup.

``tests.adapter.parsing.written`` has the many forms of calls that one family reads; here is one way for each name of a parser, all
of them with compact JSON, so that every family's reply is the same to a client, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from adapter.types import ParsedModelOutput, ToolUse

Calls = Callable[[Sequence[ToolUse]], str]


@dataclass(frozen=True)
class Writer:
    """``calls`` writes a reply's calls. A bare format cannot have text before them."""

    calls: Calls
    reasoning_parser: str = "think"
    reasoning: str = "<think>\n{}\n</think>\n\n"
    before_calls: str = "\n"
    """What stands between text and calls."""
    bare: bool = False

    def write(self, reply: ParsedModelOutput) -> str | None:
        """The text of a reply, without the token that ends it; None if no such reply can be written."""
        if self.bare and reply.text and reply.tool_uses:
            return None
        written = self.reasoning.format(reply.reasoning) if reply.reasoning else ""
        written += reply.text
        if reply.text and reply.tool_uses:
            written += self.before_calls
        return written + (self.calls(reply.tool_uses) if reply.tool_uses else "")


@dataclass(frozen=True)
class HarmonyWriter:
    """Every part is a message of its own."""

    reasoning_parser: str = "none"

    def write(self, reply: ParsedModelOutput) -> str | None:
        messages: list[str] = []
        if reply.reasoning:
            messages.append(f"<|channel|>analysis<|message|>{reply.reasoning}<|end|>")
        if reply.text:
            channel, end = ("commentary", "<|end|>") if reply.tool_uses else ("final", "<|return|>")
            messages.append(f"<|channel|>{channel}<|message|>{reply.text}{end}")
        messages += [
            f"<|channel|>commentary to=functions.{use.name} <|constrain|>json<|message|>{compact(use.input)}<|call|>"
            for use in reply.tool_uses
        ]
        return "<|start|>assistant".join(messages)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> str:
    """As formats without quotes write a value."""
    return value if isinstance(value, str) else compact(value)


def hermes(uses: Sequence[ToolUse]) -> str:
    calls = [f'{{"name": "{use.name}", "arguments": {compact(use.input)}}}' for use in uses]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def xml(uses: Sequence[ToolUse]) -> str:
    def call(use: ToolUse) -> str:
        members = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in use.input.items())
        return f"<tool_call>\n<function={use.name}>\n{members}</function>\n</tool_call>"

    return "\n".join(map(call, uses))


def glm(uses: Sequence[ToolUse]) -> str:
    def call(use: ToolUse) -> str:
        members = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for key, value in use.input.items()
        )
        return f"<tool_call>{use.name}\n{members}</tool_call>"

    return "\n".join(map(call, uses))


def kimi(uses: Sequence[ToolUse]) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{use.name}:{at}<|tool_call_argument_begin|>{compact(use.input)}<|tool_call_end|>"
        for at, use in enumerate(uses)
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def deepseek_v3(uses: Sequence[ToolUse]) -> str:
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{use.name}\n```json\n{compact(use.input)}\n```<｜tool▁call▁end｜>"
        for use in uses
    )
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def deepseek_v31(uses: Sequence[ToolUse]) -> str:
    calls = "".join(
        f"<｜tool▁call▁begin｜>{use.name}<｜tool▁sep｜>{compact(use.input)}<｜tool▁call▁end｜>" for use in uses
    )
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def invokes(prefix: str, uses: Sequence[ToolUse], typed: bool) -> str:
    def member(key: str, value: Any) -> str:
        hint = f' string="{str(isinstance(value, str)).lower()}"' if typed else ""
        return f'<{prefix}parameter name="{key}"{hint}>{plain(value)}</{prefix}parameter>\n'

    return "".join(
        f'<{prefix}invoke name="{use.name}">\n{"".join(member(*item) for item in use.input.items())}</{prefix}invoke>\n'
        for use in uses
    )


def deepseek_v32(uses: Sequence[ToolUse]) -> str:
    return f"<｜DSML｜function_calls>\n{invokes('｜DSML｜', uses, typed=True)}</｜DSML｜function_calls>"


def minimax(uses: Sequence[ToolUse]) -> str:
    return f"<minimax:tool_call>\n{invokes('', uses, typed=False)}</minimax:tool_call>"


def mistral(uses: Sequence[ToolUse]) -> str:
    return "".join(f"[TOOL_CALLS]{use.name}[ARGS]{compact(use.input)}" for use in uses)


def llama_json(uses: Sequence[ToolUse]) -> str:
    return "; ".join(f'{{"name": "{use.name}", "parameters": {compact(use.input)}}}' for use in uses)


def pythonic(uses: Sequence[ToolUse]) -> str:
    calls = [f"{use.name}({', '.join(f'{key}={value!r}' for key, value in use.input.items())})" for use in uses]
    return f"[{', '.join(calls)}]"


def llama4(uses: Sequence[ToolUse]) -> str:
    return f"<|python_start|>{pythonic(uses)}<|python_end|>"


def gemma(opening: str, closing: str, quote: str) -> Calls:
    def value(item: Any) -> str:
        return f"{quote}{item}{quote}" if isinstance(item, str) else compact(item)

    def write(uses: Sequence[ToolUse]) -> str:
        members = [",".join(f"{key}:{value(item)}" for key, item in use.input.items()) for use in uses]
        return "".join(
            f"{opening}call:{use.name}{{{inner}}}{closing}" for use, inner in zip(uses, members, strict=True)
        )

    return write


_LLAMA = Writer(llama_json, bare=True)
_PYTHONIC = Writer(pythonic, bare=True)

WRITERS: Mapping[str, Writer | HarmonyWriter] = MappingProxyType(
    {
        "none": Writer(xml),
        "xml": Writer(xml),
        "hermes": Writer(hermes),
        "qwen3_coder": Writer(xml),
        "qwen25": Writer(hermes),
        "deepseek_v3": Writer(deepseek_v3, before_calls=""),
        "deepseek_v31": Writer(deepseek_v31, before_calls=""),
        "deepseek_v32": Writer(deepseek_v32, before_calls="\n\n"),
        "glm45": Writer(glm),
        "glm47": Writer(glm),
        "gpt_oss": HarmonyWriter(),
        "kimi_k2": Writer(kimi, before_calls=""),
        "llama": _LLAMA,
        "llama3_json": _LLAMA,
        "llama4_pythonic": Writer(llama4, bare=True),
        "pythonic": _PYTHONIC,
        "gemma3": _PYTHONIC,
        "function_gemma": Writer(gemma("<start_function_call>", "<end_function_call>", "<escape>"), before_calls=""),
        "gemma4": Writer(
            gemma("<|tool_call>", "<tool_call|>", '<|"|>'), "none", "<|channel>thought\n{}<channel|>", before_calls=""
        ),
        "minimax_m2": Writer(minimax),
        "mistral": Writer(mistral, "mistral", "[THINK]{}[/THINK]", before_calls=""),
    }
)
"""For every name of a tool parser."""
