"""Ids of a reply to reasoning, text and tool calls: feed/finish machines, the same result whole or token by token."""

from adapter.parsing.base import UnknownParser
from adapter.parsing.choose import ParserChoice, choose_parsers
from adapter.parsing.pipeline import Pipeline, PipelineOptions, StopHit
from adapter.parsing.reply import parse_model_output

__all__ = [
    "ParserChoice",
    "Pipeline",
    "PipelineOptions",
    "StopHit",
    "UnknownParser",
    "choose_parsers",
    "parse_model_output",
]
