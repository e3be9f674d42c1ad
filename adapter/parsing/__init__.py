"""Ids of a reply to reasoning, text and tool calls: feed/finish machines, the same result whole or token by token."""

from adapter.parsing.base import UnknownParser
from adapter.parsing.choose import ParserChoice, choose_parsers
from adapter.parsing.detokenize import SpelledTokens, marked_text
from adapter.parsing.markers import Markers
from adapter.parsing.pipeline import Pipeline, PipelineOptions, StopHit, markers_of
from adapter.parsing.reply import parse_model_output
from adapter.parsing.token_text import token_bytes

__all__ = [
    "Markers",
    "ParserChoice",
    "Pipeline",
    "PipelineOptions",
    "SpelledTokens",
    "StopHit",
    "UnknownParser",
    "choose_parsers",
    "marked_text",
    "markers_of",
    "parse_model_output",
    "token_bytes",
]
