"""What replicas have in common, and what keeps one of them out."""

from __future__ import annotations

from dataclasses import replace

from engine.agreement import disagreement, in_common
from engine.types import Dialect, EngineInfo, GuideKind, LogProbMode

INFO = EngineInfo("tensorrt_llm", LogProbMode.RAW, max_seq_len=4096, vocab_size=1000, weight_version=3)


def test_limits_are_the_smallest_and_offers_those_of_all() -> None:
    one = replace(INFO, guides=frozenset({GuideKind.LARK, GuideKind.JSON}), loras=frozenset({"a", "b"}))
    other = replace(
        INFO, max_seq_len=2048, weight_version=2, guides=frozenset({GuideKind.LARK}), loras=frozenset({"b", "c"})
    )
    assert disagreement(one, other) is None
    assert in_common([one, other]) == replace(other, loras=frozenset({"b"}))
    assert in_common([one]) == one


def test_another_vocabulary_or_meaning_of_log_probs_is_refused_by_name() -> None:
    assert "its vocabulary is 999, not 1000" in (disagreement(INFO, replace(INFO, vocab_size=999)) or "")
    processed = replace(INFO, log_prob_mode=LogProbMode.PROCESSED)
    assert "its log-prob mode is processed, not raw" in (disagreement(INFO, processed) or "")
    cumulative = replace(INFO, dialect=Dialect.CUMULATIVE)
    assert "its dialect is cumulative, not delta" in (disagreement(INFO, cumulative) or "")
    assert "its model is other" in (disagreement(INFO, replace(INFO, model="other")) or "")
