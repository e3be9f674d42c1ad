"""A conversation means the same in every protocol's words: equal messages, tools and sampling, whatever is in it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.adapter.protocols.cases import PROTOCOLS, UNTIMED
from tests.support.speakers import (
    Asks,
    Call,
    Chat,
    Entry,
    Gemini,
    Messages,
    Responses,
    Results,
    Said,
    Settings,
    Speaker,
)

SPEAKERS: dict[str, Speaker] = {
    "anthropic": Messages(),
    "openai_chat": Chat(),
    "openai_responses": Responses(),
    "gemini": Gemini("m"),
}
TEXT = st.text(min_size=1, max_size=12)
NAMES = st.sampled_from(("look", "now"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[Entry]:
    """It begins and ends with the user; each call has its result, and results come in any order."""
    entries: list[Entry] = [Asks(draw(TEXT))]
    for turn in range(draw(st.integers(0, 3))):
        made = draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3))
        calls = tuple(Call(f"call_{turn}_{at}", name, arguments) for at, (name, arguments) in enumerate(made))
        said = Said(draw(st.just("") | TEXT), draw(TEXT if not calls else st.just("") | TEXT), calls, f"sig_{turn}")
        entries.append(said)
        if calls:
            order = draw(st.permutations(calls))
            entries.append(Results(tuple((call, draw(st.text(max_size=12))) for call in order)))
        else:
            entries.append(Asks(draw(TEXT)))
    return entries


SETTINGS = st.builds(
    Settings,
    system=TEXT,
    tools=st.just(
        (
            ("look", "Look it up — 查", {"type": "object", "properties": {"b": {"type": "string"}}}),
            ("now", "", {"type": "object", "properties": {}}),
        )
    ),
    max_tokens=st.integers(1, 1000),
    temperature=st.sampled_from((0.0, 0.25, 1.0)),
    seed=st.integers(0, 2**31 - 1),
)


def meaning(name: str, settings: Settings, entries: list[Entry]) -> dict[str, Any]:
    request = PROTOCOLS[name].parse_request(SPEAKERS[name].body(settings, entries))
    return {
        "messages": request.messages,
        "tools": request.tools,
        "tool_choice": (request.tool_choice, request.parallel_tool_calls),
        "max_tokens": request.max_tokens,
        "sampling": dict(request.sampling),
        "calls": [handle for handles in request.handles for handle in handles if handle.startswith("call_")],
    }


@UNTIMED
@given(settings=SETTINGS, entries=conversations())
def test_every_protocol_means_the_same(settings: Settings, entries: list[Entry]) -> None:
    expected, *others = (meaning(name, settings, entries) for name in SPEAKERS)
    for other in others:
        assert other == expected
