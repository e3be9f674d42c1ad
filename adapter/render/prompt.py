"""Messages to prompt ids: the chat template, then the tokenizer.

A tokenizer directory is what a model is published with: ``tokenizer.json``, ``tokenizer_config.json`` and, in newer ones,
``chat_template.jinja`` and ``generation_config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer

from adapter.errors import BadRequest
from adapter.render.closing import USER, SuffixRefused
from adapter.render.control import ControlTokens
from adapter.render.encoding import Encoder
from adapter.render.opener import GenerationPrompts
from adapter.render.selftest import SuffixSupport, check_suffixes
from adapter.render.suffix import Before, Suffix, SuffixRenderer
from adapter.render.template import ChatTemplate
from adapter.render.text import PromptText, RenderOptions
from adapter.types import Message, ScaffoldKind, ScaffoldSpan, Tool
from engine.types import Ids


class TokenizerError(Exception):
    """The tokenizer directory lacks something; the message names the file and what to do."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt: ``ids`` int32 [P], and the text that they encode."""

    ids: Ids
    text: str
    scaffold: tuple[ScaffoldSpan, ...] = ()
    """The generation prompt at the end, if the template has one."""


class Renderer:
    """Tokenizer and chat template of one model. Stateless once built; safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, end_ids: tuple[int, ...]) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.end_ids = end_ids
        """Tokens that end an assistant turn, in the order of the model's configuration."""
        self.encoder = Encoder(tokenizer, ControlTokens(tokenizer.get_added_tokens_decoder(), template.source))
        self._text = PromptText(template, self.encoder.control)
        self._openers = GenerationPrompts(self._text, self.encoder)
        self._suffixes: SuffixRenderer | None = None
        try:
            self._suffixes = SuffixRenderer(self._text, self.encoder, self._openers, end_ids)
            self.support = check_suffixes(self._text, self.encoder, self._suffixes)
        except SuffixRefused as error:
            self.support = SuffixSupport(False, str(error))

    @classmethod
    def load(cls, directory: Path, template_file: Path | None = None, end_tokens: Sequence[str] = ()) -> Renderer:
        """Read a tokenizer directory. ``template_file`` replaces its chat template, ``end_tokens`` its end tokens.

        Raises: TokenizerError.
        """
        tokenizer = _load_tokenizer(directory)
        config = _read_json(directory / "tokenizer_config.json")
        source = _template_source(directory, config, template_file)
        end_ids = _named_ids(tokenizer, end_tokens) if end_tokens else _end_ids(directory, tokenizer, config)
        return cls(tokenizer, _template(source, config, template_file or directory), end_ids)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What this tokenizer and template cannot do, for the log; empty for those in common use."""
        found = (
            ("text from users can become control tokens", self.encoder.fault),
            ("turns may need a full render of their conversation", self.support.reason),
        )
        return tuple(f"{effect}: {reason}" for effect, reason in found if reason)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool], options: Mapping[str, Any]) -> Prompt:
        """Render and encode. Linear in the whole conversation; releases the GIL while it encodes.

        Raises: BadRequest, if the template refuses the conversation.
        """
        given = RenderOptions(tools, options)
        marks = self._text.marks(messages, given)
        text = self._text.render(messages, given, marks)
        ids = self.encoder.encode(text, marks)
        shown = marks.remove(text)
        start = self._openers.start(options, shown, ids)
        span = ScaffoldSpan(start, int(ids.size), ScaffoldKind.GENERATION_PROMPT)
        return Prompt(ids, shown, (span,) if start < ids.size else ())

    def beginning(self, message: Message, options: Mapping[str, Any]) -> Ids:
        """What the model would have written so far of a reply that begins with ``message``: int32 [B], for behind a prompt.

        The template renders the message behind a fixed one; what follows the generation prompt up to the end of the content counts.
        Raises: BadRequest, if the template opens a reply in another way than it renders one.
        """
        given = RenderOptions((), options)
        marks = self._text.marks([message], given)
        begun = {**message, "content": message["content"] + marks.edge}
        opened = self._text.render([USER], given, marks)
        whole = self._text.render([USER, begun], replace(given, add_generation_prompt=False), marks)
        end = whole.find(marks.edge)
        if end == -1 or not whole.startswith(opened):
            raise BadRequest(
                "the model's chat template cannot go on from an assistant message; end with a user message",
                field="messages",
            )
        return self.encoder.encode(whole[len(opened) : end], marks, at_start=False)

    def suffix(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        options: Mapping[str, Any],
        *,
        output_tail: Ids,
        called: Sequence[str] = (),
    ) -> Suffix:
        """What to append to the stored ids of a turn, prompt and output, so that new ``messages`` follow it.

        ``output_tail`` are the last of the turn's output ids; ``called`` the names of the tools that it called, for templates that
        name them in their results. The cost follows ``messages``.

        Raises: BadRequest, if the template refuses the messages; SuffixRefused, if this template needs a full render for them.
        """
        self.support.require(messages)
        assert self._suffixes is not None
        return self._suffixes.render(messages, RenderOptions(tools, options), Before(output_tail, tuple(called)))


def _load_tokenizer(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{path} does not exist; --tokenizer takes a folder with tokenizer.json and tokenizer_config.json"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no class of its own
        raise TokenizerError(f"cannot read the tokenizer {path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return document


def _template(source: str, config: Mapping[str, Any], origin: Path) -> ChatTemplate:
    try:
        return ChatTemplate(source, _special_tokens(config))
    except TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template of {origin} has a mistake in line {error.lineno}: {error}") from error


def _template_source(directory: Path, config: Mapping[str, Any], template_file: Path | None) -> str:
    path = template_file or directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"the chat template {path} is not text: {error}") from error
    if template_file is not None:
        raise TokenizerError(f"the chat template {template_file} does not exist")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named templates; "default" is what apply_chat_template takes
        source = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}.get("default")
    if not isinstance(source, str):
        raise TokenizerError(f"{directory} has no chat template; give one with --chat-template FILE")
    return source


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    return {name: _token_text(config[name]) for name in names if config.get(name) is not None}


def _token_text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _end_ids(directory: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The end tokens: ``eos_token`` of the tokenizer, then those of ``generation_config.json`` (an id or a list of ids)."""
    ids = _named_ids(tokenizer, [_token_text(config["eos_token"])]) if config.get("eos_token") else ()
    generation = _read_json(directory / "generation_config.json").get("eos_token_id", [])
    ids += tuple(generation) if isinstance(generation, list) else (int(generation),)
    if not ids:
        raise TokenizerError(
            f"{directory} names no end token; give it with --end-token, such as --end-token '<|im_end|>'"
        )
    return tuple(dict.fromkeys(ids))


def _named_ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> tuple[int, ...]:
    return tuple(_token_id(tokenizer, token) for token in tokens)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise TokenizerError(f"the tokenizer has no token {token!r}")
    return found
