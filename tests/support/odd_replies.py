"""Replies as models write them and nobody would: for the scripted model, each asked for by a marker in the newest message.

A reply is thinking, text and tool calls in the format of Hermes and Qwen, with every freedom that the format leaves: order of keys,
spacing, escapes, numbers. Some are cut off, some are malformed, some are cut into tokens in another way than a tokenizer would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

COUNT = 48
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "read_file": {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "number"}}},
    "search": {"type": "object", "properties": {"where": {"type": "object"}, "big": {"type": "integer"}, "path": {}}},
}

_THOUGHTS = (
    "",
    "<think>\nplan\n</think>\n\n",
    "<think>\n\n</think>\n\n",
    "<think>  \n I think — 思考… \n\n</think>\n",
    "<think>on one line</think>",
)
_TEXTS = ("", "Fine.", "  padded  \n\n", "\n\n", "naïve 日本語 👩‍🚀", 'a <b> & "c" \\n', "I look:\n")
_ARGUMENTS = (
    '{"path": "a.txt"}',
    '{"limit":1.0,"path":"b"}',
    '{ "path" : "\\u00e9\\u4e2d\\ud83d\\ude00\\/" , "where": {"b": [1, 2.50, 1e3, -0.0], "a": null} }',
    '{"big": 12345678901234567890, "path": "x", "where": {}}',
    '{"big": 9007199254740993, "where": {"z": 1e22, "y": 0.1}}',
    "{}",
    '{"other": true, "limit": false, "path": ""}',
    '{"path": "line\\nbreak\\ttab", "path": "twice"}',
    '{"2": "two", "1": "one"}',
    '{\n  "path": "pretty",\n  "limit": 3\n}',
)
_CALLS = (
    '{{"name": "{name}", "arguments": {arguments}}}',
    '{{"name":"{name}","arguments":{arguments}}}',
    '{{"arguments": {arguments}, "name": "{name}"}}',
    '{{\n "name": "{name}",\n "arguments": {arguments}\n}}',
)
_MALFORMED = (
    '<tool_call>\n{"name": "read_file", "arguments": {"path": }}\n</tool_call>',
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}}\n</tool_call>',
    '<tool_call>\n{"arguments": {"path": "a"}}\n</tool_call>',
)


def marker(reply: int) -> str:
    """What asks for a reply."""
    return f"[[reply {reply % COUNT}]]"


def script(encode: Callable[[str], list[int]], seed: int = 0) -> dict[str, Any]:
    """A script for the scripted model that gives reply N to a prompt whose last marker is ``marker(N)``."""
    generator = random.Random(seed)
    rules = [_rule(number, encode, generator) for number in range(COUNT)]
    return {"rules": rules, "default": {"text": "Hello.", "end": True}, "tail_tokens": 2048}


def _rule(number: int, encode: Callable[[str], list[int]], generator: random.Random) -> dict[str, Any]:
    condition = {"prompt_regex": rf"\[\[reply {number}\]\](?![\s\S]*\[\[reply)"}
    text = _text(generator)
    if number % 6 == 5:
        return {**condition, "text": text[: generator.randrange(len(text))] or "So", "finish_reason": "length"}
    if number % 4 == 3:
        return {
            **condition,
            "ids": [token for piece in _pieces(text, generator) for token in encode(piece)],
            "end": True,
        }
    return {**condition, "text": text, "end": True}


def _text(generator: random.Random) -> str:
    calls = [_call(generator) for _ in range(generator.choice((0, 1, 1, 1, 2, 3)))]
    thought, text = generator.choice(_THOUGHTS), generator.choice(_TEXTS)
    tail = generator.choice(("", "", "\nDone."))
    return thought + text + "\n".join(calls) + tail or "Yes."


def _call(generator: random.Random) -> str:
    if generator.random() < 0.1:
        return generator.choice(_MALFORMED)
    form = generator.choice(_CALLS)
    name = generator.choice((*TOOLS, "unknown"))
    space = generator.choice(("\n", "\n", "", " "))
    return f"<tool_call>{space}{form.format(name=name, arguments=generator.choice(_ARGUMENTS))}{space}</tool_call>"


def _pieces(text: str, generator: random.Random) -> list[str]:
    """``text`` cut at random, but not inside a tag: a model writes those as one token."""
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = (
            text.find(">", start) + 1
            if text[start] == "<" and ">" in text[start:]
            else start + generator.randrange(1, 7)
        )
        tag = text.find("<", start + 1, end)
        end = tag if tag > 0 else end
        pieces.append(text[start:end])
        start = end
    return pieces
