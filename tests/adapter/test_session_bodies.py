"""Whatever a trainer sends to open or finish a session: it is read, or it is a BadRequest that names a field."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import BadRequest
from adapter.jsontext import dump_json
from adapter.session_bodies import FINISH_FIELDS, OPEN_FIELDS, FinishRequest, SessionSettings, requested_sid
from tests.adapter.protocols.test_bad_bodies import JSON, places

OPEN: dict[str, Any] = {
    "sid": "a-b_c.1~",
    "sampling": {"default": {"temperature": 1.0, "seed": 5}, "pinned": {"top_k": 5}},
    "policy": "keep",
    "max_context_tokens": 4096,
    "max_turns": 4,
    "max_session_tokens": 9000,
    "max_weight_lag": 1,
    "on_weight_lag": "drop",
    "metadata": {"a": [1]},
}
FINISH: dict[str, Any] = {
    "reward": {"a": 1.0},
    "leaf_rewards": {"1": 0.5},
    "turn_rewards": {"1": 0.5, "2": 1},
    "filters": {
        "drop_truncated": True,
        "drop_labels": ["title"],
        "max_staleness": 1,
        "current_version": 2,
        "stale": "samples",
    },
    "metadata": {"a": [1]},
    "index": 0,
    "group_index": 1,
    "prompt": "p",
    "label": None,
    "max_sample_tokens": 100,
}


def read_open(body: Mapping[str, Any]) -> SessionSettings:
    requested_sid(body)
    return SessionSettings.parse(body)


READERS = pytest.mark.parametrize(
    ("read", "valid", "known"),
    [(read_open, OPEN, OPEN_FIELDS), (FinishRequest.parse, FINISH, FINISH_FIELDS)],
    ids=["open", "finish"],
)
Read = Callable[[Mapping[str, Any]], Any]


def read_or_bad_request(read: Read, body: dict[str, Any]) -> None:
    """The only two outcomes; what is read can be journaled."""
    try:
        dump_json(dict(read(body).source))
    except BadRequest as error:
        assert error.field is not None
        orjson.dumps(error.code)


@READERS
def test_the_bodies_to_be_spoilt_are_valid(read: Read, valid: dict[str, Any], known: frozenset[str]) -> None:
    assert read(valid).source == valid
    assert valid.keys() <= known | {"sid"}


@READERS
@given(data=st.data())
def test_any_members(read: Read, valid: dict[str, Any], known: frozenset[str], data: st.DataObject) -> None:
    names = st.sampled_from(sorted(known)) | st.text(max_size=3)
    read_or_bad_request(read, data.draw(st.dictionaries(names, JSON, max_size=3)))


@READERS
@given(data=st.data())
def test_some_values_replaced_or_removed(
    read: Read, valid: dict[str, Any], known: frozenset[str], data: st.DataObject
) -> None:
    body = copy.deepcopy(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places(body)))
        if data.draw(st.booleans()):
            holder[key] = data.draw(JSON)
        else:
            del holder[key]
        if not body:
            break
    read_or_bad_request(read, body)
