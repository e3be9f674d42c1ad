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
        """The reply under these weights, or None where nothing matches. Counts as one use of the rule."""
        tail = self._tail(request) if self._script.reads_prompts else ""
        for index, rule in enumerate(self._script.rules):
            left = self._left[index]
            if left != 0 and _matches(rule, request, tail, weight_version):
                self._left[index] = None if left is None else left - 1
                return rule.reply
        return self._script.default

    def _tail(self, request: GenerateRequest) -> str:
        return self._decode(request.prompt_ids[-self._script.tail_tokens :].tolist())


def _matches(rule: Rule, request: GenerateRequest, tail: str, weight_version: int) -> bool:
    return (
        (rule.session is None or rule.session == request.session)
        and (rule.session_regex is None or rule.session_regex.fullmatch(request.session) is not None)
        and (rule.turn is None or rule.turn == request.turn)
        and (rule.weight_version is None or rule.weight_version == weight_version)
        and (rule.prompt_regex is None or rule.prompt_regex.search(tail) is not None)
    )
