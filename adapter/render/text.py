"""Messages to the prompt's text: shaped for the template, marked against spelled control tokens, rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapter.errors import BadRequest
from adapter.render.control import ControlTokens, Marks
from adapter.render.shape import learn_shape
from adapter.render.template import ChatTemplate
from adapter.types import Message, Tool


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What a conversation is rendered with, beside its messages."""

    tools: Sequence[Tool] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template, such as ``enable_thinking``."""
    add_generation_prompt: bool = True


class PromptText:
    """The text side of one model. Stateless once built."""

    def __init__(self, template: ChatTemplate, control: ControlTokens) -> None:
        self.template = template
        self.control = control
        self.shape = learn_shape(lambda messages: template.render(messages, (), {}, add_generation_prompt=False))

    def marks(self, messages: Sequence[Message], options: RenderOptions) -> Marks:
        """Marks for this conversation. Raises: BadRequest."""
        return self.control.marks(messages, options.tools, options.variables)

    def render(self, messages: Sequence[Message], options: RenderOptions, marks: Marks) -> str:
        """Text in which every control token without a mask is the template's own.

        Raises: BadRequest, if the template refuses the conversation.
        """
        shaped = self.shape.apply(messages)
        try:
            shaped, tools, variables = self.control.masked([shaped, options.tools, options.variables], marks)
        except RecursionError as error:
            raise BadRequest("the conversation is nested too deeply", field="messages") from error
        return self.template.render(shaped, tools, variables, add_generation_prompt=options.add_generation_prompt)
