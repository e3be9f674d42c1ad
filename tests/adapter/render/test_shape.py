"""The shape of messages is learned from the template, and nothing that was said is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.render.prompt import Renderer
from adapter.render.shape import MessageShape, folded, learn_shape
from adapter.render.template import ChatTemplate
from adapter.types import Message
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import call, result, user
from tests.support.assets import tokenizer_dir


def arguments(then: str) -> str:
    """A template's loop over the calls, with ``then`` behind the arguments."""
    return "{%- for call in message.tool_calls or [] -%}[{{ call.function.arguments" + then + " }}]{%- endfor -%}"


SYSTEM: Message = {"role": "system", "content": "S"}


def assistant(content: str, *calls: dict[str, Any], reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": list(calls)} if calls else message


def learned(body: str) -> MessageShape:
    template = ChatTemplate("{%- for message in messages -%}" + body + "{%- endfor -%}")
    return learn_shape(lambda messages: template.render(messages, (), {}, add_generation_prompt=False))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{{ message.content }}" + arguments(" | tojson"), MessageShape()),
        ("{{ message.content }}" + arguments(".items()"), MessageShape()),
        ("{{ message.content }}" + arguments(" + ''"), MessageShape(arguments_as_text=True)),
        (
            "{%- if message.content is none -%}"
            + arguments(" | tojson")
            + "{%- else -%}{{ message.content }}{%- endif -%}",
            MessageShape(null_beside_calls=True),
        ),
        (
            "{{ message.content }}"
            "{%- for call in message.tool_calls or [] if not call.id -%}{{ raise_exception('id') }}{%- endfor -%}"
            + arguments(" | tojson"),
            MessageShape(with_ids=True),
        ),
        ("{{ message.content }}", MessageShape()),
        ("{%- if message.role != 'system' -%}{{ message.content }}{%- endif -%}", MessageShape(system_in_place=False)),
        ("{{ raise_exception('no') }}", MessageShape(system_in_place=False)),
    ],
    ids=["object", "items", "text", "null-content", "with-ids", "no-calls", "no-system", "refuses"],
)
def test_a_shape_is_the_first_that_shows_the_arguments(body: str, expected: MessageShape) -> None:
    assert learned(body) == expected


def test_ids_go_by_the_place_in_the_message() -> None:
    messages = [
        user("x"),
        assistant("", call("a", "x"), call("b", "y")),
        result("1"),
        result("2"),
        assistant("", call("c", "z")),
        result("3"),
    ]
    shaped = MessageShape(with_ids=True).apply(messages)
    assert [made["id"] for message in shaped for made in message.get("tool_calls", ())] == [
        "call00000",
        "call00001",
        "call00000",
    ]
    assert [message.get("tool_call_id") for message in shaped if message["role"] == "tool"] == [
        "call00000",
        "call00001",
        "call00000",
    ]
    assert not any("tool_call_id" in message for message in messages)


def test_mistrals_packaged_template_wants_ids() -> None:
    renderer = Renderer.load(tokenizer_dir("mistral_nemo"))
    prompt = renderer.prompt([user("x"), assistant("", call("look", "y")), result("z")], [], {})
    assert '"id": "call00000"}]</s>[TOOL_RESULTS]{"content": z, "call_id": "call00000"}' in prompt.text


def test_deepseeks_packaged_template_wants_text_and_no_content(renderers: Renderers) -> None:
    renderer = renderers("deepseek_v3")
    said = assistant("I look.", call("look", "你"), reasoning="R")
    text = renderer.prompt([user("Hi"), said, result("nothing")], (), {}).text
    assert text.index("I look.") < text.index('{"path": "你"}') < text.index("nothing")


def test_text_beside_calls_becomes_a_message_before_them() -> None:
    shape = MessageShape(arguments_as_text=True, null_beside_calls=True)
    said = assistant("I look.", call("look", "x"), reasoning="R")
    text, calls = shape.apply([said])
    assert text == assistant("I look.", reasoning="R")
    assert calls["content"] is None and "reasoning_content" not in calls
    assert calls["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"path": "x"}'}
    (alone,) = shape.apply([assistant("", call("look", "x"), reasoning="R")])
    assert alone["content"] is None and alone["reasoning_content"] == "R"
    assert said == assistant("I look.", call("look", "x"), reasoning="R"), "the client's message is not changed"


def test_messages_that_fit_are_shared() -> None:
    messages = [user("Hi"), assistant("yes")]
    assert all(ours is theirs for ours, theirs in zip(MessageShape(True, True).apply(messages), messages, strict=True))


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


CALLS = assistant("", call("look", "x"))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, user("a")], [SYSTEM, user("a")]),
        ([user("a"), SYSTEM], [user(f"a\n{reminder('S')}")]),
        ([user("a"), SYSTEM, SYSTEM], [user(f"a\n{reminder('S')}\n{reminder('S')}")]),
        ([CALLS, SYSTEM, user("a")], [CALLS, user(f"{reminder('S')}\na")]),
        ([CALLS, SYSTEM, SYSTEM], [CALLS, user(f"{reminder('S')}\n{reminder('S')}")]),
        ([CALLS, SYSTEM, result("r")], [CALLS, result("r"), user(reminder("S"))]),
        (
            [CALLS, result("r"), SYSTEM, result("s"), user("a")],
            [CALLS, result("r"), result("s"), user(f"{reminder('S')}\na")],
        ),
        (
            [user("a"), assistant("b"), SYSTEM, assistant("c")],
            [user("a"), assistant("b"), user(reminder("S")), assistant("c")],
        ),
    ],
)
def test_folding_keeps_calls_beside_results_and_users_apart(messages: list[Message], expected: list[Message]) -> None:
    assert folded(messages) == expected
