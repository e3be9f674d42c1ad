"""A Triton request as a value: every tensor checked for dtype, shape and range before anything else sees it.

A request is one of three kinds. ``stop: true`` makes it a ``StopRequest``, a ``control`` tensor a ``ControlRequest``
(the other tensors are then not looked at), anything else is a ``GenerateRequest``. Values that are not given are
TensorRT-LLM's defaults, except that no sampling parameter at all means plain sampling (temperature 1, top_p 1, all of
the vocabulary), not greedy.

The first wrong value raises ``InvalidRequest``, which names the tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .contract import NUMPY_DTYPES, Contract
from .control import Control, ControlError, parse_control
from .guides import Guide, GuideError, read_guide
from .stop_words import decode_word_list

UNSET_ID = -1
"""What TensorRT-LLM's clients send in ``end_id`` and ``pad_id`` for "none"."""


class InvalidRequest(ValueError):
    """The request is refused; ``str(error)`` names the tensor and says what is wrong with it."""


class Reader(Protocol):
    """A request of Triton, as far as decoding needs it."""

    def request_id(self) -> str: ...

    def parameters(self) -> str:
        """The request parameters as a JSON object."""
        ...

    def tensor(self, name: str) -> NDArray[Any] | None:
        """The input with its batch dimension, or None when it was not sent. BYTES are object arrays of ``bytes``."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model allows. ``max_seq_len`` counts prompt and output together, in tokens; ``guides`` are kinds."""

    vocab_size: int
    max_seq_len: int
    guides: frozenset[str] = frozenset()
    loras: frozenset[str] = frozenset()
    """Names."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; ranges as in ``decode``. ``top_k`` 0 is all of the vocabulary, ``temperature`` 0 is
    greedy."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation. ``prompt_ids`` int32 [P], P >= 1. ``end_ids`` joins ``end_id`` and the one-token stop words;
    ``stop_words`` holds the longer ones. ``request_id`` may be empty."""

    request_id: str
    prompt_ids: NDArray[np.int32]
    max_tokens: int
    end_ids: tuple[int, ...]
    stop_words: tuple[tuple[int, ...], ...]
    sampling: Sampling
    streaming: bool
    return_log_probs: bool
    exclude_input_in_output: bool
    session: str
    turn: int
    guide: Guide | None = None
    lora: str = ""
    """Of ``Limits.loras``, or none."""
    continued: int = 0
    """Tokens at the end of the prompt that are the beginning of this reply, as the client says."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Cancel the live request of the same id."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """An operation on the model itself."""

    request_id: str
    control: Control


Request = GenerateRequest | StopRequest | ControlRequest


def decode(reader: Reader, contract: Contract, limits: Limits) -> Request:
    """Raises: InvalidRequest."""
    tensors = _Tensors(reader, contract)
    if tensors.flag("stop", False):
        return StopRequest(reader.request_id())
    if reader.tensor("control") is not None:
        return ControlRequest(reader.request_id(), _control(tensors))
    return _generate_request(reader, tensors, limits)


class _Tensors:
    """Reads of single tensors against the contract's table."""

    def __init__(self, reader: Reader, contract: Contract) -> None:
        self._reader = reader
        self._contract = contract

    def invalid(self, name: str, what: str) -> InvalidRequest:
        return InvalidRequest(f"{name}: {what}")

    def array(self, name: str) -> NDArray[Any] | None:
        """The tensor without its batch dimension."""
        array: NDArray[Any] | None = self._reader.tensor(name)
        spec = self._contract.inputs[name]
        if array is None:
            if not spec.optional:
                raise self.invalid(name, "missing")
            return None
        if array.dtype != NUMPY_DTYPES[spec.dtype]:
            raise self.invalid(name, f"dtype is {array.dtype}, not {spec.dtype}")
        wanted = (1, *spec.dims)
        if len(array.shape) != len(wanted) or any(w not in (-1, n) for w, n in zip(wanted, array.shape, strict=True)):
            raise self.invalid(name, f"shape is {list(array.shape)}, not {list(wanted)}")
        item: NDArray[Any] = array[0]
        return item

    def value(self, name: str) -> Any:
        """The one element as a Python value, or None."""
        array = self.array(name)
        return None if array is None else array[0].item() if array.dtype != np.object_ else array[0]

    def flag(self, name: str, default: bool) -> bool:
        value = self.value(name)
        return default if value is None else bool(value)

    def number(self, name: str, default: float, valid: Callable[[float], bool], rule: str) -> Any:
        """``rule`` says what ``valid`` asks for. A NaN must fail ``valid``: write it with comparisons that NaN
        fails."""
        value = self.value(name)
        if value is None:
            return default
        if not valid(value):
            raise self.invalid(name, f"{value} is not {rule}")
        return value


def _generate_request(reader: Reader, tensors: _Tensors, limits: Limits) -> GenerateRequest:
    prompt_ids, max_tokens = _prompt(tensors, limits)
    end_ids, stop_words = _ends(tensors, limits)
    session, turn, continued = _origin(reader, tensors, len(prompt_ids))
    return GenerateRequest(
        request_id=reader.request_id(),
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        end_ids=end_ids,
        stop_words=stop_words,
        sampling=_sampling(tensors, max_tokens),
        streaming=tensors.flag("streaming", False),
        return_log_probs=tensors.flag("return_log_probs", False),
        exclude_input_in_output=tensors.flag("exclude_input_in_output", True),
        session=session,
        turn=turn,
        guide=_guide(tensors, limits),
        lora=_lora(tensors, limits),
        continued=continued,
    )


def _prompt(tensors: _Tensors, limits: Limits) -> tuple[NDArray[np.int32], int]:
    ids = tensors.array("input_ids")
    assert ids is not None  # not optional in the contract
    if ids.size == 0:
        raise tensors.invalid("input_ids", "empty")
    outside = ids[(ids < 0) | (ids >= limits.vocab_size)]
    if outside.size:
        raise tensors.invalid("input_ids", f"id {outside[0]} is outside the vocabulary of {limits.vocab_size} tokens")
    length = tensors.value("input_lengths")
    if length != ids.size:
        raise tensors.invalid("input_lengths", f"{length} for {ids.size} input_ids")
    max_tokens = tensors.number("request_output_len", 0, lambda n: n >= 1, "at least 1")
    if ids.size + max_tokens > limits.max_seq_len:
        raise tensors.invalid(
            "input_ids",
            f"prompt too long: {ids.size} tokens and {max_tokens} new ones exceed max_seq_len {limits.max_seq_len}",
        )
    # A copy: Triton's buffer is only ours while the request lives.
    return np.array(ids, dtype=np.int32), max_tokens


def _ends(tensors: _Tensors, limits: Limits) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    def in_vocabulary(token: float) -> bool:
        return 0 <= token < limits.vocab_size

    def id_or_unset(token: float) -> bool:
        return token == UNSET_ID or in_vocabulary(token)

    rule = f"{UNSET_ID} or in the vocabulary of {limits.vocab_size} tokens"
    tensors.number("pad_id", UNSET_ID, id_or_unset, rule)
    end_id = tensors.number("end_id", UNSET_ID, id_or_unset, rule)
    rows = tensors.array("stop_words_list")
    try:
        words = () if rows is None else decode_word_list(rows)
    except ValueError as error:
        raise tensors.invalid("stop_words_list", str(error)) from None
    for token in (token for word in words for token in word):
        if not in_vocabulary(token):
            raise tensors.invalid(
                "stop_words_list", f"id {token} is outside the vocabulary of {limits.vocab_size} tokens"
            )
    singles = ([] if end_id == UNSET_ID else [end_id]) + [word[0] for word in words if len(word) == 1]
    return tuple(dict.fromkeys(singles)), tuple(dict.fromkeys(word for word in words if len(word) > 1))


def _sampling(tensors: _Tensors, max_tokens: int) -> Sampling:
    def finite(value: float) -> bool:
        return bool(np.isfinite(value))

    def finite_from_zero(value: float) -> bool:
        return finite(value) and value >= 0

    def finite_above_zero(value: float) -> bool:
        return finite(value) and value > 0

    return Sampling(
        temperature=tensors.number("temperature", 1.0, finite_from_zero, "a finite number of at least 0"),
        top_k=tensors.number("runtime_top_k", 0, lambda k: k >= 0, "at least 0"),
        top_p=tensors.number("runtime_top_p", 1.0, lambda p: 0 < p <= 1, "above 0 and at most 1"),
        seed=tensors.number("seed", 0, lambda seed: seed >= 0, "at least 0"),
        min_tokens=tensors.number(
            "min_tokens", 0, lambda n: 0 <= n <= max_tokens, f"between 0 and request_output_len {max_tokens}"
        ),
        repetition_penalty=tensors.number("repetition_penalty", 1.0, finite_above_zero, "a finite number above 0"),
        presence_penalty=tensors.number("presence_penalty", 0.0, finite, "a finite number"),
        frequency_penalty=tensors.number("frequency_penalty", 0.0, finite, "a finite number"),
    )


def _guide(tensors: _Tensors, limits: Limits) -> Guide | None:
    kind, text = (tensors.value(name) for name in ("guided_decoding_guide_type", "guided_decoding_guide"))
    try:
        return read_guide(kind, text, limits.guides)
    except GuideError as error:
        raise tensors.invalid(error.tensor, str(error)) from None


def _lora(tensors: _Tensors, limits: Limits) -> str:
    value = tensors.value("lora")
    name = "" if value is None else value.decode(errors="replace")
    if name and name not in limits.loras:
        raise tensors.invalid("lora", f"there is no {name!r}; loaded: {', '.join(sorted(limits.loras)) or 'none'}")
    return name


def _origin(reader: Reader, tensors: _Tensors, prompt_length: int) -> tuple[str, int, int]:
    """``session``, ``turn`` and ``continued`` of the request parameters."""
    parameters = json.loads(reader.parameters() or "{}")
    session = parameters.get("session", "")
    if not isinstance(session, str):
        raise tensors.invalid("parameter session", "not a string")
    turn, continued = (_count(parameters, name, tensors) for name in ("turn", "continued"))
    if continued >= prompt_length:
        raise tensors.invalid("parameter continued", f"{continued} of a prompt of {prompt_length} tokens")
    return session, turn, continued


def _count(parameters: Mapping[str, Any], name: str, tensors: _Tensors) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise tensors.invalid(f"parameter {name}", "not an integer of at least 0")
    return value


def _control(tensors: _Tensors) -> Control:
    try:
        return parse_control(tensors.value("control"))
    except ControlError as error:
        raise tensors.invalid("control", str(error)) from None
