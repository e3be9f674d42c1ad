"""One call at most, for every form of calls: the first is the reply's, however the ids come, and what was kept reads the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from adapter.parsing import Pipeline, PipelineOptions
from adapter.parsing.reply import merged
from adapter.types import ParsedModelOutput, ReplyEvent, ToolCallEnd
from engine.types import FinishReason
from tests.adapter.parsing.written import FORM_NAMES, FORMS, TOOLS

Read = tuple[list[ReplyEvent], ParsedModelOutput, int | None]


def read(tokenizer: Tokenizer, form: str, pieces: Sequence[Sequence[int]], max_calls: int | None) -> Read:
    """The events, the reply, and after how many tokens it was ended."""
    pipeline = Pipeline(tokenizer, PipelineOptions(FORMS[form].parser, tools=TOOLS, max_calls=max_calls))
    events = [event for piece in pieces for event in pipeline.feed(np.array(piece, np.int32))]
    events += pipeline.finish(FinishReason.STOP)
    return merged(events), pipeline.output(), pipeline.stopped.tokens if pipeline.stopped else None


@pytest.mark.parametrize("form", FORM_NAMES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), size=st.integers(1, 7))
def test_the_first_call_is_the_reply(qwen3: Tokenizer, form: str, data: st.DataObject, size: int) -> None:
    ids = qwen3.encode(FORMS[form].write(data.draw(FORMS[form].calls)), add_special_tokens=False).ids
    pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
    free = read(qwen3, form, [ids], None)[1]
    limited = read(qwen3, form, pieces, 1)
    assert limited == read(qwen3, form, [ids], 1)
    events, output, kept = limited
    assert output.tool_uses == free.tool_uses[:1]
    assert isinstance(events[-1], ToolCallEnd)
    assert (kept is None) == (len(free.tool_uses) == 1)
    assert read(qwen3, form, [ids[:kept]], None)[1].tool_uses == output.tool_uses
