"""What the command line shows: sessions as a table, a session's paths as a tree, samples as text."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from tokenizers import Tokenizer

_MESSAGE_CHARACTERS = 100


def print_sessions(console: Console, sessions: Sequence[Mapping[str, Any]]) -> None:
    table = Table("session", "state", "turns", "in flight", "age, s")
    for session in sessions:
        age = f"{time.time() - session['created_at']:.0f}"
        table.add_row(
            escape(session["sid"]), session["state"], str(session["turn_count"]), str(session["in_flight"]), age
        )
    console.print(table)


def print_tree(console: Console, session: Mapping[str, Any]) -> None:
    """The view of ``GET /v1/sessions/SID``: shared beginnings of its paths are drawn once."""
    root = Tree(f"session [bold]{escape(session['sid'])}[/bold], {session['turn_count']} turns")
    branches: dict[tuple[str, ...], Tree] = {}
    for path in session["paths"]:
        parent = root
        key: tuple[str, ...] = ()
        for node in path:
            key = (*key, json.dumps([node["message"], node["turn_index"]], sort_keys=True))
            if key not in branches:
                branches[key] = parent.add(_node_label(node))
            parent = branches[key]
    console.print(root)


def _node_label(node: Mapping[str, Any]) -> str:
    message = node["message"] or {}
    text = str(message.get("content", ""))
    calls = [
        f"{call['function']['name']}({json.dumps(call['function']['arguments'])})"
        for call in message.get("tool_calls", ())
    ]
    shown = " ".join([text.replace("\n", "⏎"), *calls])
    shown = shown if len(shown) <= _MESSAGE_CHARACTERS else shown[: _MESSAGE_CHARACTERS - 1] + "…"
    turn = f" [green]turn {node['turn_index']}[/green]" if node["has_generation_record"] else ""
    return f"[cyan]{node['role']}[/cyan]{turn} {escape(shown)}"


def print_sample(console: Console, tokenizer: Tokenizer, sample: Mapping[str, Any]) -> None:
    """A sample's response part: trained tokens green, context dim, with the counts."""
    trained = sum(sample["loss_mask"])
    leading = len(sample["tokens"]) - sample["response_length"]
    console.print(
        f"{len(sample['tokens'])} tokens: {leading} leading prompt, {sample['response_length']} response, {trained} of them trained"
    )
    console.print(_coloured_response(tokenizer, sample["tokens"][leading:], sample["loss_mask"]))


def _coloured_response(tokenizer: Tokenizer, tokens: Sequence[int], mask: Sequence[int]) -> Text:
    text = Text()
    start = 0
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or mask[end] != mask[start]:
            piece = tokenizer.decode(list(tokens[start:end]), skip_special_tokens=False)
            text.append(piece, style="green" if mask[start] else "dim")
            start = end
    return text


def print_explanation(console: Console, answer: Mapping[str, Any]) -> None:
    """The view of ``GET /v1/sessions/SID/explain``: a line a turn, then what differed."""
    table = Table("turn", "label", "matched", "after", "reused", "rendered", "sampled", "end")
    for turn in answer["turns"]:
        tokens = turn["tokens"]
        rendered = f"{tokens['rendered']} ({tokens['scaffold']} scaffold)"
        label = (turn["label"] or {}).get("kind", "")
        after = str(turn["base_turn"] or "")
        counts = (str(tokens["reused"]), rendered, str(tokens["sampled"]))
        table.add_row(str(turn["turn_index"]), label, turn["reason"], after, *counts, turn["finish_reason"])
    console.print(f"session {escape(answer['sid'])}, policy {answer['policy']}")
    console.print(table)
    for turn in answer["turns"]:
        _print_remarks(console, turn)


def _print_remarks(console: Console, turn: Mapping[str, Any]) -> None:
    where = f"turn {turn['turn_index']}:"
    for segment in turn["segments"] if len(turn["segments"]) > 1 else ():
        console.print(
            f"{where} from token {segment['start']} by {escape(segment['endpoint'])}, weight version {segment['version']}"
        )
    for normalised in turn["normalised"]:
        console.print(
            f"{where} {normalised['rule']} took out {escape(normalised['field'])}: {escape(normalised['original'])}"
        )
    for difference in turn["differences"]:
        console.print(f"{where} {escape(json.dumps(difference, ensure_ascii=False))}")
    split = turn["divergence"]
    if split is not None:
        text = {side: repr(piece) for side, piece in split["text"].items()}
        console.print(
            f"{where} departs from turn {split['turn_index']} at token {split['position']}, after {escape(text['before'])}"
        )
        console.print(f"  known {escape(text['known'])}")
        console.print(f"  sent  {escape(text['sent'])}")
