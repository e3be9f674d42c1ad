"""Messages to text, by the model's own chat template.

A chat template is a Jinja program that model authors write against the environment of transformers' ``apply_chat_template``:
trimmed blocks, loop controls, a ``tojson`` filter that keeps non-ASCII text, ``raise_exception`` and ``strftime_now``. The same
environment is built here, sandboxed, so that the rendered text is the same byte for byte without importing transformers.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

from adapter.errors import BadRequest
from adapter.types import Message, Tool


class ChatTemplate:
    """A compiled chat template.

    ``special_tokens`` (``bos_token``, ``eos_token``, ...) are variables that templates read. ``now`` gives the time for templates
    that print a date.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        environment = _environment(now)
        self._template = environment.from_string(source)
        self._variables = jinja2.meta.find_undeclared_variables(environment.parse(source))

    def read_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``options`` that can change what is rendered, under the names by which the template reads them."""
        named = {name: value for name, value in options.items() if name in self._variables}
        aliased = {ALIASES[name]: value for name, value in options.items() if self.reads(name) and name not in named}
        return aliased | named

    def reads(self, option: str) -> bool:
        """Whether the template names this option, or what it calls it."""
        return option in self._variables or ALIASES.get(option) in self._variables

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        options: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text, with the generation prompt at its end or without it.

        Raises: BadRequest, if the template refuses the messages (an order of roles that it does not know, say).
        """
        try:
            return self._template.render(
                **self._special_tokens,
                **{name: value for name, value in self.read_options(options).items() if name not in _RESERVED},
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except RecursionError as error:
            raise BadRequest("the conversation is nested too deeply", field="messages") from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BadRequest(
                f"the model's chat template refuses this conversation: {error}", field="messages"
            ) from error


ALIASES: Mapping[str, str] = {"enable_thinking": "thinking"}
"""Options that some templates call by another name: those of DeepSeek V3.1, Kimi and Granite."""

_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"}
)


def _environment(now: Callable[[], datetime.datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes HTML characters, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for trainers that re-render; here it renders its content and nothing else."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
