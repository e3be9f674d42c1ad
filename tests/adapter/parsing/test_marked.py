"""Cutting replies at markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapter.parsing.markers import Markers
from adapter.parsing.tools.marked import PIECE, Cutter, Piece
from tests.support.feeding import same_however_fed

TEXTS = ("<|a|>", "<|a|><|b|>", "[X]")


def cut(pieces: list[str], markers: Markers) -> list[Piece]:
    """The pieces, text that goes on joined."""
    cutter = Cutter(markers, TEXTS)
    joined: list[Piece] = []
    for piece in [piece for text in pieces for piece in cutter.feed(text)] + cutter.finish():
        if joined and not (joined[-1].marker or piece.marker):
            joined[-1] = Piece(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


def test_markers_are_text_where_the_vocabulary_has_none() -> None:
    assert same_however_fed(lambda pieces: cut(pieces, Markers()), "x<|a|>[X]y<|a") == [
        Piece("x"),
        Piece("<|a|>", "<|a|>"),
        Piece("[X]", "[X]"),
        Piece("y<|a"),
    ]


def test_the_longest_marker_counts() -> None:
    assert cut(["<|a|><|b|><|a|><|b"], Markers()) == [
        Piece("<|a|><|b|>", "<|a|><|b|>"),
        Piece("<|a|>", "<|a|>"),
        Piece("<|b"),
    ]


def test_markers_are_stand_ins_where_they_are_tokens() -> None:
    markers = Markers({"<|a|>": 1, "[other]": 2})
    text = f"<|a|>{markers.look('<|a|>')}{markers.look('[other]')}[X]"
    assert same_however_fed(lambda pieces: cut(pieces, markers), text) == [
        Piece("<|a|>"),
        Piece(markers.look("<|a|>"), "<|a|>", is_token=True),
        Piece(markers.look("[other]")),
        Piece("[X]", "[X]"),
    ]


def test_long_text_comes_in_pieces() -> None:
    assert [len(piece.text) for piece in Cutter(Markers(), TEXTS).feed("x" * (2 * PIECE + 1))] == [PIECE, PIECE, 1]


@given(st.lists(st.sampled_from([*TEXTS, "<|", "a", "|>", "[", "X", "]", "x"]), max_size=12).map("".join))
def test_nothing_is_lost(text: str) -> None:
    assert "".join(piece.text for piece in cut([text], Markers())) == text
