"""System messages inside the history: folded for templates that take none, handles at their messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapter.protocols.folding import fold_system_messages, folded
from adapter.types import ChatRequest, Message
from tests.adapter.protocols.cases import UNTIMED


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def fold(*messages: Message) -> list[Message]:
    return list(folded(ChatRequest(messages=messages)).messages)


def test_an_entry_joins_the_user_message_before_it() -> None:
    assert fold(message("user", "hi"), message("system", "X"), message("user", "next")) == [
        message("user", "hi\n" + reminder("X")),
        message("user", "next"),
    ]


def test_an_entry_after_tool_results_is_a_user_message() -> None:
    history = [message("user", "hi"), message("assistant", ""), message("tool", "result")]
    assert fold(*history, message("system", "X"), message("system", "Y")) == [
        *history,
        message("user", reminder("X") + "\n" + reminder("Y")),
    ]


def test_an_entry_after_a_reply_changes_nothing_before_it() -> None:
    history = [message("user", "hi"), message("assistant", "so")]
    assert fold(*history, message("system", "X")) == [*history, message("user", reminder("X"))]


def test_entries_before_any_turn_go_to_the_head() -> None:
    heads = [message("system", text) for text in ("sys", "A", "B")]
    assert fold(*heads, message("user", "hi")) == [message("system", "sys\nA\nB"), message("user", "hi")]


def test_the_fold_says_whether_it_changed_something() -> None:
    messages = [message("user", "hello"), message("system", "X"), message("user", "next")]
    assert fold_system_messages(messages)
    assert [each["role"] for each in messages] == ["user", "user"]
    assert not fold_system_messages(messages)
    headed = ChatRequest(messages=(message("system", "sys"), message("user", "hello")))
    assert folded(headed) is headed


MESSAGES = st.lists(
    st.builds(message, st.sampled_from(("system", "user", "assistant", "tool")), st.sampled_from("ab")), min_size=1
)


@UNTIMED
@given(messages=MESSAGES)
def test_handles_stay_with_their_messages(messages: list[Message]) -> None:
    for index, each in enumerate(messages):
        if each["role"] == "assistant":
            each["content"] = str(index)
    handles = tuple((each["content"],) if each["role"] == "assistant" else () for each in messages)
    request = folded(ChatRequest(messages=tuple(messages), handles=handles))
    assert len(request.handles) == len(request.messages)
    for each, issued in zip(request.messages, request.handles, strict=True):
        assert issued == ((each["content"],) if each["role"] == "assistant" else ())
    assert sum(map(len, request.handles)) == sum(each["role"] == "assistant" for each in messages)


@UNTIMED
@given(messages=MESSAGES)
def test_no_handles_stay_no_handles(messages: list[Message]) -> None:
    assert folded(ChatRequest(messages=tuple(messages))).handles == ()


@UNTIMED
@given(messages=MESSAGES, more=MESSAGES)
def test_a_longer_history_leaves_everything_before_a_reply_as_it_was(
    messages: list[Message], more: list[Message]
) -> None:
    before = fold(*messages, message("assistant", "reply"))
    assert fold(*messages, message("assistant", "reply"), *more)[: len(before)] == before
