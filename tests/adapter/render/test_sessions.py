"""Whole sessions under the policy ``keep``: stored ids ++ suffix is the full render, wherever the template rewrites no history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.render.prompt import Renderer
from adapter.types import Message
from engine.types import Ids
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import OPTIONS, TOOLS, Step, answers, result, sessions, user
from tests.adapter.render.families import FAMILIES

EMPTY_THINKING = "<think>\n\n</think>\n\n"
"""What Qwen3's template puts before the very last reply if that has no thinking. Our model does not sample it."""


class KeptSession:
    """A session as the server keeps it, with a model that samples what the template would render for its answer."""

    def __init__(self, renderer: Renderer, options: dict[str, bool], has_tools: bool) -> None:
        self.renderer = renderer
        self.options = options
        self.tools = TOOLS if has_tools else ()
        self.history: list[Message] = []
        self.ids: Ids = np.zeros(0, np.int32)
        self.text = ""
        self._output: Ids = np.zeros(0, np.int32)
        self._called: tuple[str, ...] = ()

    def ask(self, new: list[Message]) -> None:
        """The prompt for new messages: the first is rendered as a whole, later ones are suffixes."""
        if self.history:
            given = self.renderer.suffix(new, self.tools, self.options, output_tail=self._output, called=self._called)
            self.ids, self.text = np.concatenate([self.ids, given.ids]), given.text
        else:
            prompt = self.renderer.prompt(new, self.tools, self.options)
            self.ids, self.text = prompt.ids, prompt.text
        self.history = [*self.history, *new]

    def answer(self, message: Message) -> bool:
        """Sample ``message`` as it would be rendered; False if the template will render something else in the history."""
        prompt = self._render(self.history, add_generation_prompt=True)
        self.history = [*self.history, message]
        self._called = tuple(call["function"]["name"] for call in message.get("tool_calls", ()))
        closed = self._render(self.history, add_generation_prompt=False)
        self._output = self._until_end(closed.removeprefix(prompt).removeprefix(EMPTY_THINKING))
        self.ids = np.concatenate([self.ids, self._output])
        said = self.renderer.tokenizer.decode(self._output[:-1].tolist(), skip_special_tokens=False)
        follow = [result("x")] * len(self._called) or [user("x")]
        return self._render([*self.history, *follow], add_generation_prompt=True).startswith(prompt + said)

    def full_ids(self) -> Ids:
        return self.renderer.prompt(self.history, self.tools, self.options).ids

    def _render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        template = self.renderer.template
        return template.render(messages, self.tools, self.options, add_generation_prompt=add_generation_prompt)

    def _until_end(self, text: str) -> Ids:
        ids = self.renderer.tokenizer.encode(text, add_special_tokens=False).ids
        ends = [place for place, id_ in enumerate(ids) if id_ in self.renderer.end_ids]
        return np.array(ids[: ends[-1] + 1] if ends else ids, dtype=np.int32)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=30)
@given(st.data())
def test_a_kept_session_is_the_full_render(renderers: Renderers, family: str, data: st.DataObject) -> None:
    """Up to where the template rewrites what was: Qwen3 takes out the empty thinking of its own generation prompt."""
    has_tools = FAMILIES[family].tools
    session = KeptSession(renderers(family), data.draw(OPTIONS), has_tools)
    for step in data.draw(sessions(tools=has_tools, reasoning=False)):
        session.ask(step.new)
        assert replaced_ends(session, session.ids) == replaced_ends(session, session.full_ids())
        if not session.answer(step.answer):
            return


def replaced_ends(session: KeptSession, ids: Ids) -> list[int]:
    """Harmony's ``<|return|>`` is ``<|end|>`` in a rendered history; what was sampled stays."""
    end = session.renderer.tokenizer.token_to_id("<|end|>")
    sampled = session.renderer.tokenizer.token_to_id("<|return|>")
    return [end if id_ == sampled else id_ for id_ in ids.tolist()]


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.drops_thinking])
@settings(max_examples=30)
@given(st.data())
def test_dropped_thinking_changes_nothing_behind_the_last_reply(
    renderers: Renderers, family: str, data: st.DataObject
) -> None:
    session = KeptSession(renderers(family), {}, has_tools=True)
    for step in data.draw(sessions(tools=True, reasoning=True)):
        before = session.ids.size
        session.ask(step.new)
        new_part = session.ids[before:]
        assert session.full_ids()[-new_part.size :].tolist() == new_part.tolist()
        session.answer(step.answer)


@settings(max_examples=30)
@given(st.data())
def test_thinking_stays_in_a_kept_session(renderers: Renderers, data: st.DataObject) -> None:
    session = KeptSession(renderers("qwen3"), {}, has_tools=False)
    thoughts = [f"thought number {number}" for number in range(3)]
    for thought in thoughts:
        session.ask([user(data.draw(st.sampled_from(["one", "two\n", ""])))])
        session.answer({**data.draw(answers(False, False)), "reasoning_content": thought})
    kept = session.renderer.tokenizer.decode(session.ids.tolist(), skip_special_tokens=False)
    rendered = session.renderer.tokenizer.decode(session.full_ids().tolist(), skip_special_tokens=False)
    assert [kept.count(thought) for thought in thoughts] == [1, 1, 1]
    assert [rendered.count(thought) for thought in thoughts] == [0, 0, 1]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(st.data())
def test_a_truncated_turn_is_closed_as_the_template_closes_it(
    renderers: Renderers, family: str, data: st.DataObject
) -> None:
    """A reply cut at any token: the next prompt is the full render of what came out, if that encodes as it was sampled."""
    renderer = renderers(family)
    step: Step = data.draw(sessions(tools=False, reasoning=False))[0]
    prompt = renderer.prompt(step.new, (), {})
    words = renderer.tokenizer.encode("I think it is so and so", add_special_tokens=False).ids
    cut = words[: data.draw(st.integers(1, len(words)))]
    said: Message = {"role": "assistant", "content": renderer.tokenizer.decode(cut)}
    given_ids = renderer.suffix([user("go on")], (), {}, output_tail=np.array(cut, np.int32)).ids
    full = renderer.prompt([*step.new, said, user("go on")], (), {}).ids
    opener = full.size - given_ids.size - len(cut)
    assert full[opener:].tolist() == [*cut, *given_ids.tolist()]
    assert full[: prompt.ids.size].tolist() == prompt.ids.tolist()
