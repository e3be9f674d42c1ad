"""A tokenizer with llguidance's view of it: what a grammar lets a model write."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from adapter.parsing.choose import ParserChoice
from adapter.parsing.markers import Markers
from adapter.parsing.pipeline import Pipeline, PipelineOptions, markers_of
from adapter.types import ChatRequest, ParsedModelOutput
from engine.types import FinishReason, Guide, GuideKind

_GRAMMARS = {
    GuideKind.JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
    GuideKind.REGEX: LLMatcher.grammar_from_regex,
    GuideKind.LARK: LLMatcher.grammar_from_lark,
}


@dataclass(frozen=True)
class Vocabulary:
    """Of one model."""

    tokenizer: Tokenizer
    trie: LLTokenizer

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        text = (folder / "tokenizer.json").read_text()
        return cls(Tokenizer.from_str(text), LLTokenizer(text))

    def markers(self, parsers: ParserChoice) -> Markers:
        return markers_of(self.tokenizer, parsers)

    def allows(self, guide: Guide, text: str) -> bool:
        """Whether a reply may be ``text``, from beginning to end."""
        matcher = self.matcher(guide)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def matcher(self, guide: Guide) -> LLMatcher:
        matcher = LLMatcher(self.trie, _GRAMMARS[guide.kind](guide.text))
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def written(self, guide: Guide, seed: int, limit: int) -> list[int] | None:
        """What a model without any preference writes under ``guide``; None if it is not done after ``limit`` tokens."""
        matcher, draws, ids = self.matcher(guide), random.Random(seed), []
        while len(ids) < limit:
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            allowed = allowed[~np.isin(allowed, self.trie.eos_tokens)]
            if not allowed.size or (matcher.is_accepting() and draws.random() < 0.5):
                return ids
            ids.append(int(draws.choice(allowed)))
            matcher.consume_token(ids[-1])
        return None

    def parsed(self, ids: list[int], request: ChatRequest, parsers: ParserChoice) -> ParsedModelOutput:
        """The reply as the client gets it."""
        options = PipelineOptions(parsers.tool_parser, parsers.reasoning_parser, tools=request.tools)
        pipeline = Pipeline(self.tokenizer, options)
        pipeline.feed(np.array(ids, np.int32))
        pipeline.finish(FinishReason.STOP)
        return pipeline.output()
