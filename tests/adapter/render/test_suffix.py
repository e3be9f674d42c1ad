"""Suffixes of single turns, id by id: each way in which other systems have been seen to break is a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from adapter.errors import BadRequest
from adapter.render.closing import SuffixRefused
from adapter.render.prompt import Renderer
from adapter.render.suffix import Suffix
from adapter.types import Message, ScaffoldKind
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import TOOLS, call, result, user
from tests.adapter.render.families import FAMILIES, WITH_TOOLS


def suffix(
    renderer: Renderer,
    new: Sequence[Message],
    output: str = "",
    *,
    called: Sequence[str] = (),
    tools: Sequence[dict[str, Any]] = (),
    **options: Any,
) -> Suffix:
    """Behind an output that ends with the text ``output``."""
    tail = renderer.tokenizer.encode(output, add_special_tokens=False).ids
    return renderer.suffix(new, tools, options, output_tail=np.array(tail, np.int32), called=called)


def decoded(renderer: Renderer, given: Suffix) -> str:
    return str(renderer.tokenizer.decode(given.ids.tolist(), skip_special_tokens=False))


def scaffold(renderer: Renderer, given: Suffix) -> list[tuple[str, str]]:
    return [
        (
            span.kind.value,
            renderer.tokenizer.decode(given.ids[span.start : span.end].tolist(), skip_special_tokens=False),
        )
        for span in given.scaffold
    ]


USER_TURNS = {
    "qwen2_5": ("<|im_end|>", "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    "qwen3": ("<|im_end|>", "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    "demo": ("<|im_end|>", "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    "llama3_1": (
        "<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma3": ("<end_of_turn>", "\n<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"),
    "gptoss": ("<|end|>", "<|start|>user<|message|>Hi<|end|><|start|>assistant"),
    "deepseek_v3": ("<｜end▁of▁sentence｜>", "<｜User｜>Hi<｜Assistant｜>"),
    "deepseek_v3_tools": ("<｜end▁of▁sentence｜>", "<｜User｜>Hi<｜Assistant｜>"),
}
"""By family: the token that a history closes a reply with, and what follows it before the next reply."""


@pytest.mark.parametrize("family", FAMILIES)
def test_after_an_ended_reply_only_what_the_engine_did_not_sample(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    end, following = USER_TURNS[family]
    ended = renderer.tokenizer.decode([renderer.end_ids[0]], skip_special_tokens=False)
    given = suffix(renderer, [user("Hi")], f"ok{ended}")
    assert given.ids.dtype == np.int32
    assert decoded(renderer, given) == following
    assert given.text == end + following


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("output", ["", "cut off in the mid"])
def test_a_truncated_reply_gets_the_whole_closer(renderers: Renderers, family: str, output: str) -> None:
    renderer = renderers(family)
    end, following = USER_TURNS[family]
    given = suffix(renderer, [user("Hi")], output)
    assert decoded(renderer, given) == end + following
    kind, text = scaffold(renderer, given)[0]
    assert (kind, text.rstrip("\n")) == (ScaffoldKind.CLOSE, end)


@pytest.mark.parametrize("family", FAMILIES)
def test_scaffold_is_what_neither_a_user_wrote_nor_the_model_sampled(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    end, following = USER_TURNS[family]
    given = suffix(renderer, [user("Hi")], end)
    closes_with_newline = following.startswith("\n")
    opener = following[following.rindex(following.split("Hi")[1].removeprefix(end).removeprefix("\n")) :]
    expected = [("close", "\n")] if closes_with_newline else []
    assert scaffold(renderer, given) == [*expected, ("generation_prompt", opener)]


def test_the_newline_after_the_end_token_is_there(renderers: Renderers) -> None:
    given = suffix(renderers("qwen2_5"), [user("Hi")], "ok<|im_end|>")
    assert given.ids[:2].tolist() == [198, 151644]
    assert given.scaffold[0].kind is ScaffoldKind.CLOSE
    assert (given.scaffold[0].start, given.scaffold[0].end) == (0, 1)


def test_nothing_merges_over_the_boundary(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    boundary = renderer.tokenizer.encode("\n\n", add_special_tokens=False).ids
    assert len(boundary) == 1, "two newlines are one token, so encoding the joined text would merge them"
    given = suffix(renderer, [user("\nHi")], "text\n<|im_end|>")
    assert given.ids.tolist()[0] == 198
    assert decoded(renderer, given) == "\n<|im_start|>user\n\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_the_empty_thinking_of_the_generation_prompt_is_scaffold(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    opener = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    given = suffix(renderer, [user("Hi")], "<|im_end|>", enable_thinking=False)
    assert given.text.endswith(opener)
    assert scaffold(renderer, given)[-1] == ("generation_prompt", opener)
    assert scaffold(renderer, suffix(renderer, [user("Hi")], "<|im_end|>"))[-1][1] == "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            "qwen3",
            "\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "gptoss",
            "<|start|>functions.look to=assistant<|channel|>commentary<|message|>one<|end|>"
            "<|start|>functions.查找 to=assistant<|channel|>commentary<|message|>two<|end|><|start|>assistant",
        ),
        (
            "deepseek_v3_tools",
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>one<｜tool▁output▁end｜>"
            "\n<｜tool▁output▁begin｜>two<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        ),
    ],
)
def test_results_in_a_row_are_grouped_as_the_template_groups_them(
    renderers: Renderers, family: str, expected: str
) -> None:
    renderer = renderers(family)
    end = renderer.tokenizer.decode([renderer.end_ids[-1]], skip_special_tokens=False)
    given = suffix(renderer, [result("one"), result("two")], end, called=("look", "查找"), tools=TOOLS)
    assert decoded(renderer, given) == expected


def test_the_sampled_end_token_stays_where_a_history_would_have_another(renderers: Renderers) -> None:
    renderer = renderers("gptoss")
    for end in ("<|return|>", "<|call|>"):
        assert decoded(renderer, suffix(renderer, [user("Hi")], end)).startswith("<|start|>user")
    results = [result("sunny")]
    assert decoded(renderer, suffix(renderer, results, "<|call|>", called=("look",))).startswith(
        "<|start|>functions.look to=assistant"
    )
    assert decoded(renderer, suffix(renderer, results, '{"a"', called=("look",))).startswith(
        "<|call|><|start|>functions."
    )


def test_results_without_a_name_are_taken_in_order(renderers: Renderers) -> None:
    renderer = renderers("gptoss")
    given = suffix(renderer, [result("one"), result("two")], "<|call|>", called=("look",))
    assert given.text.count("<|start|>functions.look ") == 1
    assert given.text.count("<|start|>functions.x ") == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_spells_control_tokens_stays_text(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    control = renderer.encoder.control.ids
    text = "".join(token for token in control if token in renderer.template.source)
    spelled, harmless = (suffix(renderer, [user(f"a{content}b")]) for content in (text, ""))
    of_template = [id_ for id_ in harmless.ids.tolist() if id_ in control.values()]
    assert text and [id_ for id_ in spelled.ids.tolist() if id_ in control.values()] == of_template
    assert f"a{text}b" in spelled.text
    assert f"a{text}b" in decoded(renderer, spelled)


def test_names_of_called_tools_spell_no_control_token(renderers: Renderers) -> None:
    renderer = renderers("gptoss")
    spelled, harmless = (
        suffix(renderer, [result("x")], "<|call|>", called=(name,)) for name in ("a<|end|>", "harmless")
    )
    control = renderer.encoder.control.ids.values()
    kept = [[id_ for id_ in given.ids.tolist() if id_ in control] for given in (spelled, harmless)]
    assert kept[0] == kept[1]


def test_names_of_called_tools_that_hold_the_usual_marks(renderers: Renderers) -> None:
    text = suffix(renderers("gptoss"), [result("x")], "<|call|>", called=("a\ufdd0\ufdd1b",)).text
    assert text.startswith("<|call|><|start|>functions.a\ufdd0\ufdd1b to=assistant")


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3_1", "gptoss", "demo"])
def test_a_system_message_is_rendered_where_it_stands(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    given = suffix(renderer, [{"role": "system", "content": "Mind the gap."}, user("Hi")])
    assert given.text.index("Mind the gap.") < given.text.index("Hi")
    assert "system-reminder" not in given.text


@pytest.mark.parametrize("family", ["gemma3", "deepseek_v3", "deepseek_v3_tools"])
def test_a_template_that_cannot_has_it_folded_into_the_users_turn(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    reminder = "<system-reminder>\nMind the gap.\n</system-reminder>"
    system: Message = {"role": "system", "content": "Mind the gap."}
    end, following = USER_TURNS[family]
    for new, content in (
        ([system, user("Hi")], f"{reminder}\nHi"),
        ([user("Hi"), system], f"Hi\n{reminder}"),
        ([system], reminder),
    ):
        assert decoded(renderer, suffix(renderer, new, end)) == following.replace("Hi", content)


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_messages_that_a_client_wrote_in_the_models_name(renderers: Renderers, family: str) -> None:
    renderer = renderers(family)
    edited: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": [call("look", "there")]},
        result("nothing"),
        {"role": "assistant", "content": "Nothing is there."},
    ]
    given = suffix(renderer, [user("Hi"), *edited, user("Look again")])
    whole = renderer.prompt(
        [user("x"), {"role": "assistant", "content": "y"}, user("Hi"), *edited, user("Look again")], (), {}
    )
    assert whole.ids.tolist()[-given.ids.size :] == given.ids.tolist()
    assert given.text.count("Nothing is there.") == 1


def test_a_refused_order_of_roles_is_a_bad_request(renderers: Renderers) -> None:
    with pytest.raises(BadRequest, match="alternate"):
        suffix(renderers("gemma3"), [user("a"), user("b")])


def test_a_template_without_results_needs_a_full_render(renderers: Renderers) -> None:
    with pytest.raises(SuffixRefused, match="alternate"):
        suffix(renderers("gemma3"), [result("x")])


def test_the_tools_are_not_rendered_for_a_suffix_that_does_not_show_them(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    broken = [{"type": "function", "function": {"name": object()}}]
    with pytest.raises(BadRequest):
        renderer.prompt([user("Hi")], broken, {})
    assert suffix(renderer, [user("Hi")], tools=broken).ids.tolist() == suffix(renderer, [user("Hi")]).ids.tolist()


def test_no_new_message_at_all(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    assert decoded(renderer, suffix(renderer, [], "<|im_end|>")) == "\n<|im_start|>assistant\n"
