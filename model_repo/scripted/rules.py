"""Which reply does a request get: the first rule that matches and is not used up, else the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.requests import GenerateRequest

from .script import Reply, Rule, Script

Decode = Callable[[Sequence[int]], str]


class RuleBook:
    """A script's rules and how often each has answered. ``decode`` makes a text of ids, special tokens included."""

    def __init__(self, script: Script, decode: Decode) -> None:
        self._script = script
        self._decode = decode
        self._left = [rule.times for rule in script.rules]

    def answer(self, request: GenerateRequest, weight_version: int = 0) -> Reply | None:
        """The reply under these weights, or None where nothing matches. Counts as one use of the rule, unless it is the rest of
        a reply."""
        tail = self._tail(request) if self._script.reads_prompts else ""
        matching = [
            index for index, rule in enumerate(self._script.rules) if _matches(rule, request, tail, weight_version)
        ]
        if request.continued and (begun := self._begun(request, matching)) is not None:
            return begun
        for index in matching:
            left = self._left[index]
            if left != 0:
                self._left[index] = None if left is None else left - 1
                return self._script.rules[index].reply
        return self._script.default

    def _begun(self, request: GenerateRequest, matching: Sequence[int]) -> Reply | None:
        """The reply that begins with what was sampled of it, though its rule may be used up."""
        output = tuple(request.prompt_ids[-request.continued :].tolist())
        replies = (self._script.rules[index].reply for index in matching)
        return next((reply for reply in replies if reply.ids[: len(output)] == output), None)

    def _tail(self, request: GenerateRequest) -> str:
        """The text of the prompt's end, without what is already reply."""
        prompt = request.prompt_ids[: len(request.prompt_ids) - request.continued]
        return self._decode(prompt[-self._script.tail_tokens :].tolist())


def _matches(rule: Rule, request: GenerateRequest, tail: str, weight_version: int) -> bool:
    return (
        (rule.session is None or rule.session == request.session)
        and (rule.session_regex is None or rule.session_regex.fullmatch(request.session) is not None)
        and (rule.turn is None or rule.turn == request.turn)
        and (rule.weight_version is None or rule.weight_version == weight_version)
        and (rule.prompt_regex is None or rule.prompt_regex.search(tail) is not None)
    )
