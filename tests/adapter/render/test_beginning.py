"""A reply's beginning in the client's words: what the template would write of it, behind any prompt."""

from __future__ import annotations

import pytest

from tests.adapter.render.conftest import Renderers
from tests.adapter.render.families import FAMILIES

USER = {"role": "user", "content": "Say <|im_end|> twice."}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["Hello", "two  spaces", "line\n", "你好 👩‍💻", "a <|im_end|> b", "ends in a space "])
def test_prompt_and_beginning_are_the_rendered_conversation_up_to_there(
    renderers: Renderers, family: str, text: str
) -> None:
    renderer = renderers(family)
    begun = renderer.beginning({"role": "assistant", "content": text}, {})
    prompt = renderer.prompt([USER], (), {}).ids
    whole = renderer.prompt([USER, {"role": "assistant", "content": text}], (), {}).text
    joined = renderer.decode([*prompt.tolist(), *begun.tolist()])
    assert joined.endswith(text)
    assert whole.startswith(joined.rstrip())


def test_text_of_a_beginning_becomes_no_control_token(renderers: Renderers) -> None:
    renderer = renderers("qwen2_5")
    end = renderer.tokenizer.token_to_id("<|im_end|>")
    assert end not in renderer.beginning({"role": "assistant", "content": "a <|im_end|> b"}, {}).tolist()
