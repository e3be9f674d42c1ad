"""Handles: what was minted is read back, and nothing else is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.handles import Handle, HandleIds, Handles, claimed_turn

HANDLE = st.builds(Handle, turn=st.integers(0, 2**32 - 1), block=st.integers(0, 2**16 - 1))
KEY = bytes(range(32))


@given(handle=HANDLE, sid=st.text(), prefix=st.sampled_from(("", "toolu_", "call_", "a_b-")))
def test_what_was_minted_is_read_back(handle: Handle, sid: str, prefix: str) -> None:
    handles = Handles(KEY)
    minted = handles.mint(sid, handle)
    assert re.fullmatch(r"[A-Za-z0-9_-]{20}", minted)
    assert handles.read(sid, prefix + minted) == handle


@given(handle=HANDLE, sid=st.text(), other=st.text())
def test_a_handle_is_valid_in_its_own_session_only(handle: Handle, sid: str, other: str) -> None:
    read = Handles(KEY).read(other, Handles(KEY).mint(sid, handle))
    assert read == (handle if other == sid else None)


@given(handle=HANDLE, place=st.integers(0, 19), character=st.sampled_from("ABCDwxyz0189-_"))
def test_a_changed_character_makes_it_void(handle: Handle, place: int, character: str) -> None:
    minted = Handles(KEY).mint("s", handle)
    changed = minted[:place] + character + minted[place + 1 :]
    assert Handles(KEY).read("s", changed) == (handle if changed == minted else None)


@given(text=st.text(max_size=40) | st.from_regex(r"[A-Za-z0-9_=+/-]{0,40}", fullmatch=True))
def test_any_other_text_is_no_handle(text: str) -> None:
    assert Handles(KEY).read("s", text) is None


def test_another_key_reads_nothing() -> None:
    assert Handles().read("s", Handles().mint("s", Handle(1, 1))) is None


def test_the_same_key_reads_across_restarts() -> None:
    assert Handles(KEY).read("s", Handles(bytes(KEY)).mint("s", Handle(3, 2))) == Handle(3, 2)


def test_the_ids_of_a_turn_carry_it_and_count() -> None:
    handles = Handles(KEY)
    ids = HandleIds(handles).for_turn("s", 5)
    given_ids = [ids.new(prefix, length) for prefix, length in (("", 32), ("toolu_", 16), ("call_", 24))]
    assert [handles.read("s", text) for text in given_ids] == [Handle(5, 1), Handle(5, 2), Handle(5, 3)]
    assert [len(text) for text in given_ids] == [20, 26, 25]


@pytest.mark.parametrize(("prefix", "length"), [("msg_", 24), ("chatcmpl-", 24)])
def test_ids_outside_of_turns_are_plain(prefix: str, length: int) -> None:
    handles = Handles(KEY)
    plain = HandleIds(handles).new(prefix, length)
    assert len(plain) == len(prefix) + length
    assert handles.read("s", plain) is None


@given(turn=st.integers(0, 2**20 - 1), block=st.integers(0, 2**10 - 1), sid=st.text(max_size=5))
def test_the_turn_of_a_handle_can_be_read_without_the_key(turn: int, block: int, sid: str) -> None:
    assert claimed_turn("call_" + Handles().mint(sid, Handle(turn, block))) == turn


@pytest.mark.parametrize("handle", [Handle(2**20, 1), Handle(1, 2**10)])
def test_what_no_session_has_so_many_of_is_no_handle(handle: Handle) -> None:
    assert claimed_turn(Handles().mint("s", handle)) is None


@pytest.mark.parametrize(
    "text", ["", "call_1", "toolu_" + "a" * 16, "rs_68a1b2c3d4e5f60718293a4b5c6d7e8f", "call_" + "ä" * 20, "_" * 20]
)
def test_other_ids_speak_of_no_turn(text: str) -> None:
    assert claimed_turn(text) is None
