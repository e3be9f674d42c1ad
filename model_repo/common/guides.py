"""The guide of a request: a grammar that its output has to follow, as the two tensors name it, not yet compiled.

Which kinds there are is the model's to say: its parameter ``guided_decoding`` lists them (``json,json_schema,regex,lark``) or is
``none``. The client reads the same parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_GUIDES = "none"

MAX_GUIDE_BYTES = 1 << 20
"""Of a grammar's text. Compiling takes time and memory by its length."""


class GuideError(ValueError):
    """The guide is refused; ``tensor`` is to blame, ``str(error)`` says why."""

    def __init__(self, tensor: str, message: str) -> None:
        super().__init__(message)
        self.tensor = tensor


@dataclass(frozen=True, slots=True)
class Guide:
    """``kind`` is one that the model offers."""

    kind: str
    text: str


def guide_kinds(listed: str) -> frozenset[str]:
    """The parameter ``guided_decoding`` as a set."""
    return frozenset() if listed == NO_GUIDES else frozenset(listed.split(","))


def read_guide(kind: bytes | None, text: bytes | None, offered: frozenset[str]) -> Guide | None:
    """The values of ``guided_decoding_guide_type`` and ``guided_decoding_guide``, None where they were not sent.

    Raises: GuideError.
    """
    if kind is None:
        if text is not None:
            raise GuideError("guided_decoding_guide_type", "missing, though there is a guide")
        return None
    name = kind.decode(errors="replace")
    if name not in offered:
        there_is = ", ".join(sorted(offered)) or "no guided decoding"
        raise GuideError("guided_decoding_guide_type", f"{name!r} is not offered by this model; there is {there_is}")
    if text is not None and len(text) > MAX_GUIDE_BYTES:
        raise GuideError("guided_decoding_guide", f"{len(text)} bytes, more than {MAX_GUIDE_BYTES}")
    try:
        return Guide(name, (text or b"").decode())
    except UnicodeDecodeError:
        raise GuideError("guided_decoding_guide", "not UTF-8") from None
