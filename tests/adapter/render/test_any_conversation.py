"""Whatever a protocol's reader lets through: each chat template renders it to ids of its vocabulary, or refuses it by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.errors import BadRequest
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import PIECES
from tests.adapter.render.families import FAMILIES

EXAMPLES_EACH = 25
"""Of hypothesis, for each template."""

TEXTS = st.lists(
    PIECES | st.text(max_size=4) | st.sampled_from(("\ud800", "\x00", "{{ x }}", "<|im_end|>")), max_size=4
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
CALLS = st.lists(
    st.builds(
        lambda name, arguments: {"type": "function", "id": "c", "function": {"name": name, "arguments": arguments}},
        TEXTS,
        OBJECTS,
    ),
    max_size=2,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(("system", "user", "assistant", "tool")), "content": TEXTS},
    optional={"reasoning_content": TEXTS, "tool_calls": CALLS, "name": TEXTS},
)
TOOLS = st.builds(
    lambda name, description, parameters: {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    },
    TEXTS,
    TEXTS,
    OBJECTS
    | st.builds(
        lambda properties: {"type": "object", "properties": properties}, st.dictionaries(TEXTS, OBJECTS, max_size=2)
    ),
)
OPTIONS = st.dictionaries(
    st.sampled_from(("enable_thinking", "reasoning_effort", "custom_tools", "date_string")), VALUES, max_size=2
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXAMPLES_EACH)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=5), tools=st.lists(TOOLS, max_size=2), options=OPTIONS)
def test_any_conversation_is_rendered_or_refused(
    renderers: Renderers, family: str, messages: list[Any], tools: list[Any], options: dict[str, Any]
) -> None:
    renderer = renderers(family)
    try:
        prompt = renderer.prompt(messages, tools, options)
    except BadRequest as refused:
        assert refused.field
        return
    assert prompt.ids.dtype == np.int32
    assert prompt.ids.size == 0 or (
        prompt.ids.min() >= 0 and prompt.ids.max() < renderer.tokenizer.get_vocab_size(with_added_tokens=True)
    )
