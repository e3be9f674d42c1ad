"""Variables for the chat template that a request sets, and the field that asked for each.

Whether a variable has an effect is the template's business: where it is rendered it is known which ones it reads, and a field none
of whose variables is read is told to the client as of no effect (``ChatRequest.option_fields``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapter.protocols.knobs import read_template_options
from adapter.protocols.reading import Fields

NO_EFFORT = "none"
_EFFORTS: Mapping[str, str] = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high",
}  # fmt: skip
"""The clients' words, and those that gpt-oss was trained on: its template writes ``reasoning_effort`` into the system message."""


class TemplateOptions:
    """Collected from the fields of one request; ``values`` are ``ChatRequest.template_options``."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.fields: dict[str, str] = {}
        """Variable to field."""

    def set(self, name: str, value: Any, field: str) -> None:
        self.values[name] = value
        self.fields[name] = field

    def set_thinking(self, wanted: bool, field: str) -> None:
        self.set("enable_thinking", wanted, field)

    def set_effort(self, holder: Fields, name: str, field: str | None = None) -> None:
        """How much the model shall think, if ``holder`` says so; with ``none`` not at all. Raises: BadRequest.

        ``field`` is the member's place, if it has one name however the client spells it.
        """
        word = holder.text_or_none(name)
        if word is None:
            return
        word = word.lower()
        if word == NO_EFFORT:
            self.set_thinking(False, field or holder.at(name))
        elif word in _EFFORTS:
            self.set("reasoning_effort", _EFFORTS[word], field or holder.at(name))
        else:
            raise holder.wrong(name, f"must be one of {', '.join((NO_EFFORT, *_EFFORTS))}")

    def set_explicit(self, fields: Fields) -> None:
        """``chat_template_kwargs``, which go before what other fields mean. Raises: BadRequest."""
        for name, value in read_template_options(fields).items():
            self.set(name, value, fields.at(f"chat_template_kwargs.{name}"))
