"""Every parser family over every protocol: the same reply, in the family's own markup, is the protocol's golden wire text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer

from adapter.parsing import Pipeline, PipelineOptions, StopHit
from adapter.parsing.reply import merged
from adapter.parsing.tools.registry import TOOL_FAMILIES
from adapter.types import ParsedModelOutput, ReplyEvent, ToolUse
from engine.types import FinishReason
from tests.adapter.parsing.replies import tool
from tests.adapter.protocols.cases import CASES, GOLDEN, PROTOCOLS, Case, streamed, whole
from tests.support.assets import tokenizer_dir
from tests.support.family_writers import WRITERS, HarmonyWriter, Writer

TURNS = ("turn_thinking_text_calls", "turn_text", "turn_calls")
TOOLS = (
    tool("list_files", path={"type": "string"}, depth={"type": "integer"}),
    tool("read_file", path={"type": "string"}),
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Some families' markers are tokens of it, most are text."""
    return Tokenizer.from_file(str(tokenizer_dir("qwen3") / "tokenizer.json"))


def test_every_family_has_a_writer() -> None:
    assert WRITERS.keys() == TOOL_FAMILIES.keys()


Read = tuple[list[ReplyEvent], ParsedModelOutput, StopHit | None]


def read(tokenizer: Tokenizer, family: str, pieces: Sequence[Sequence[int]], max_calls: int | None = None) -> Read:
    options = PipelineOptions(family, WRITERS[family].reasoning_parser, tools=TOOLS, max_calls=max_calls)
    pipeline = Pipeline(tokenizer, options)
    events = [event for piece in pieces for event in pipeline.feed(np.array(piece, np.int32))]
    return merged([*events, *pipeline.finish(FinishReason.STOP)]), pipeline.output(), pipeline.stopped


def written(family: str, reply: ParsedModelOutput) -> str:
    text = WRITERS[family].write(reply)
    assert text is not None
    return text


def ids_of(tokenizer: Tokenizer, family: str, turn: str) -> list[int]:
    """The turn as the family writes it."""
    return tokenizer.encode(written(family, CASES[turn].parsed), add_special_tokens=False).ids


WRITABLE = [
    (family, turn)
    for family, writer in WRITERS.items()
    for turn in TURNS
    if writer.write(CASES[turn].parsed) is not None
]


def test_only_bare_formats_cannot_write_everything() -> None:
    bare = {family for family, writer in WRITERS.items() if isinstance(writer, Writer) and writer.bare}
    assert {(family, turn) for family in WRITERS for turn in TURNS} - set(WRITABLE) == {
        (family, "turn_thinking_text_calls") for family in bare
    }


@pytest.mark.parametrize(("family", "turn"), WRITABLE)
def test_a_familys_reply_is_the_golden_wire(tokenizer: Tokenizer, family: str, turn: str) -> None:
    ids = ids_of(tokenizer, family, turn)
    events, parsed, _ = read(tokenizer, family, [ids])
    assert read(tokenizer, family, [[token] for token in ids])[:2] == (events, parsed)
    case: Case = dataclasses.replace(CASES[turn], batches=(tuple(events),), parsed=parsed)
    for name, protocol in PROTOCOLS.items():
        assert whole(protocol, case) + b"\n" == (GOLDEN / name / f"{turn}.json").read_bytes()
        assert streamed(protocol, case) == (GOLDEN / name / f"{turn}.sse").read_bytes()


@pytest.mark.parametrize("family", WRITERS)
def test_a_reply_of_one_call_ends_with_what_closes_it(tokenizer: Tokenizer, family: str) -> None:
    calls = CASES["turn_calls"].parsed.tool_uses
    ids = ids_of(tokenizer, family, "turn_calls")
    alone = written(family, ParsedModelOutput(tool_uses=calls[:1]))
    _, parsed, stopped = read(tokenizer, family, [[token] for token in ids], max_calls=1)
    assert parsed == ParsedModelOutput(tool_uses=calls[:1])
    assert stopped is not None
    # The last token may hold the first character behind the call, where the vocabulary has such tokens.
    assert alone.startswith(tokenizer.decode(ids[: stopped.tokens - 1], skip_special_tokens=False))
    again = read(tokenizer, family, [ids[: stopped.tokens]])[1]
    assert again.tool_uses == calls[:1]


@pytest.mark.parametrize("family", WRITERS)
def test_a_reply_without_calls_is_text(tokenizer: Tokenizer, family: str) -> None:
    ids = ids_of(tokenizer, family, "turn_calls")
    _, parsed, stopped = read(tokenizer, family, [[token] for token in ids], max_calls=0)
    assert (parsed.tool_uses, stopped) == ((), None)
    assert "list_files" in parsed.text
    if not isinstance(WRITERS[family], HarmonyWriter) and family != "gemma4":  # those parsers read the whole reply
        assert parsed.text == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_call_without_arguments(tokenizer: Tokenizer) -> None:
    reply = ParsedModelOutput(tool_uses=(ToolUse("read_file", {}),))
    for family in WRITERS:
        ids = tokenizer.encode(written(family, reply), add_special_tokens=False).ids
        assert read(tokenizer, family, [ids])[1] == reply, family
