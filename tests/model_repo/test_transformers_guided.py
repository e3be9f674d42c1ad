"""Guided decoding over a tiny random model with Qwen3's vocabulary: whatever such a model samples, it follows the grammar.

In that vocabulary ``<tool_call>`` is one token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from model_repo.common.guides import Guide
from model_repo.common.requests import Sampling
from model_repo.common.stop_words import StopWords
from model_repo.transformers.guided import GuideCompiler, GuideState
from model_repo.transformers.loop import SHUTTING_DOWN
from model_repo.transformers.settings import SettingsError
from model_repo.transformers.slots import Slots
from tests.model_repo.tiny_transformers import PLAIN, Served, scored, serving
from tests.support.assets import tokenizer_dir

VOCAB = 151_936
IM_END, OPEN, CLOSE = 151_645, 151_657, 151_658
CPU = torch.device("cpu")
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
CALL = Guide(
    "lark",
    f"""start: <[{OPEN}]> "\\n{{\\"name\\": \\"weather\\", \\"arguments\\": " arguments "}}\\n" <[{CLOSE}]>
arguments: %json {json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})}
""",
)
WORDS = Guide("regex", "(ab|cd)*")
PROMPT = [100, 200, 300]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir("qwen3") / "tokenizer.json"))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as start:
        guides = GuideCompiler(tokenizer_dir("qwen3") / "tokenizer.json", VOCAB, CPU)
        yield start(guides=guides, vocab_size=VOCAB)


@pytest.fixture
def text_of(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_k": 3, "top_p": 0.5}, {"presence_penalty": 5.0}])
def test_a_call_is_written_as_the_grammar_has_it(served: Served, text_of: Any, sampling: dict[str, Any]) -> None:
    reply = served.generate(PROMPT, 100, guide=CALL, end_ids=(IM_END,), **sampling)
    assert (reply.ids[0], reply.ids[-2:], reply.finish_reason) == (OPEN, [CLOSE, IM_END], "stop")
    call = json.loads(text_of(reply.ids[1:-2]))
    assert call["name"] == "weather"
    assert call["arguments"]["unit"] in ("C", "F")
    assert 1 <= call["arguments"]["days"] <= 99


def test_log_probs_are_the_models_own_before_the_mask(served: Served) -> None:
    reply = served.generate(PROMPT, 100, guide=CALL, end_ids=(IM_END,))
    assert reply.log_probs == pytest.approx(scored(served.model, PROMPT, reply.ids), abs=1e-4)


@pytest.mark.parametrize(
    ("guide", "check"),
    [
        (Guide("json_schema", json.dumps(SCHEMA)), lambda text: set(json.loads(text)) == {"unit", "days"}),
        (Guide("regex", r"(yes|no), [0-9]{3}"), lambda text: re.fullmatch("(yes|no), [0-9]{3}", text)),
        (Guide("lark", 'start: "é" | "日本"'), lambda text: text in ("é", "日本")),
    ],
)
def test_without_end_tokens_a_reply_ends_where_its_grammar_does(
    served: Served, text_of: Any, guide: Guide, check: Callable[[str], Any]
) -> None:
    reply = served.generate(PROMPT, 200, guide=guide)
    assert reply.finish_reason == "stop"
    assert check(text_of(reply.ids))


def test_any_json_object_begins_as_one(served: Served, text_of: Any) -> None:
    reply = served.generate(PROMPT, 12, guide=Guide("json", ""))
    assert text_of(reply.ids).startswith("{")


def test_an_end_token_comes_only_where_the_grammar_is_complete(served: Served, text_of: Any) -> None:
    replies = [served.generate(PROMPT, 40, guide=WORDS, end_ids=(IM_END,), seed=seed) for seed in range(5)]
    ended = [reply for reply in replies if reply.finish_reason == "stop"]
    assert ended, "no seed gave an end token"
    for reply in ended:
        assert reply.ids[-1] == IM_END
        assert re.fullmatch("(ab|cd)*", text_of(reply.ids[:-1]))
    assert all(IM_END not in reply.ids for reply in replies if reply not in ended)


def test_min_tokens_holds_the_end_token_back(served: Served) -> None:
    replies = [served.generate(PROMPT, 40, guide=WORDS, end_ids=(IM_END,), min_tokens=12, seed=s) for s in range(3)]
    assert all(IM_END not in reply.ids[:12] for reply in replies)


def test_a_grammar_that_is_over_ends_the_reply_before_min_tokens(served: Served, text_of: Any) -> None:
    reply = served.generate(PROMPT, 40, guide=Guide("regex", "abc"), end_ids=(IM_END,), min_tokens=30)
    assert (text_of(reply.ids), reply.finish_reason) == ("abc", "stop")


def test_a_token_of_the_grammar_may_be_a_stop_word(served: Served, tokenizer: Tokenizer) -> None:
    (brace,) = tokenizer.encode("{").ids
    guide = Guide("lark", f"start: <[{brace}]> <[{brace}]> <[{OPEN}]>")
    replies = [served.generate(PROMPT, 9, guide=guide, end_ids=(brace,), min_tokens=held) for held in (0, 1, 2)]
    assert [reply.ids for reply in replies] == [[brace], [brace, brace], [brace, brace, OPEN, brace]]
    assert {reply.finish_reason for reply in replies} == {"stop"}


def test_a_stop_word_of_several_tokens_ends_the_reply_inside_the_grammar(served: Served, tokenizer: Tokenizer) -> None:
    free = served.generate(PROMPT, 40, guide=Guide("regex", "(ab|cd){30}"), temperature=0)
    word = tuple(free.ids[3:5])
    reply = served.generate(PROMPT, 40, guide=Guide("regex", "(ab|cd){30}"), temperature=0, words=(word,))
    assert reply.finish_reason == "stop"
    assert tuple(reply.ids[-2:]) == word
    assert reply.ids == free.ids[: len(reply.ids)]


@pytest.mark.parametrize(
    ("guide", "reason"),
    [
        (Guide("regex", "(a"), "regex"),
        (Guide("lark", "start: nowhere"), "nowhere"),
        (Guide("json_schema", "{"), ""),
        (Guide("json_schema", "[]"), ""),
        (Guide("json_schema", '{"type": "objekt"}'), "objekt"),
        (Guide("json_schema", '{"not": {}}'), 'Unimplemented keys: \\["not"\\]'),
        (Guide("json_schema", '{"$ref": "https://example.com/schema"}'), "does not fetch"),
        (Guide("json_schema", '{"a":' * 300 + "1" + "}" * 300), "recursion limit"),
        (Guide("regex", ""), "it lets nothing be written"),
    ],
)
def test_a_grammar_that_is_none_is_refused_by_name_and_the_others_go_on(
    served: Served, guide: Guide, reason: str
) -> None:
    beside, _ = served.send(PROMPT, 30, seed=5)
    refused, _ = served.send(PROMPT, 30, guide=guide)
    refused.wait()
    beside.wait()
    assert refused.error is not None
    assert re.match(f"refused: guided_decoding_guide: (?s:.*){reason}", refused.error)
    assert len(refused.error) < 600
    assert len(beside.ids) == 30
    assert served.warnings == []


def test_a_guided_neighbour_changes_no_bit_of_the_others(served: Served) -> None:
    """The same logits, drawn from with and without a guide in the second row."""
    compiler = GuideCompiler(tokenizer_dir("qwen3") / "tokenizer.json", VOCAB, CPU)
    states: list[GuideState] = []
    compiler.compile(CALL, lambda future: states.append(future.result()))
    compiler.close()
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    free, beside = drawn(logits, [None] * 3), drawn(logits, [None, states[0], None])
    assert [free[0], free[2]] == [beside[0], beside[2]]
    assert beside[1][0] == OPEN != free[1][0]


def drawn(logits: torch.Tensor, guides: list[GuideState | None]) -> list[tuple[int, float]]:
    slots = Slots(VOCAB, CPU)
    keys = []
    for seed, guide in enumerate(guides):
        request = SimpleNamespace(
            sampling=Sampling(**PLAIN | {"seed": seed}), end_ids=(IM_END,), prompt_ids=np.array(PROMPT)
        )
        generation = SimpleNamespace(request=request, output_ids=[], stop_words=StopWords((IM_END,), (), 0))
        keys.append(slots.open(generation, guide).key)
        slots.scheduled(keys[-1], 0)
    slots.draw(keys, logits)
    return [(each.token, each.log_prob) for each in slots.take_drawn()]


def test_in_company_a_guided_request_and_the_others_give_what_they_give_alone(served: Served) -> None:
    requests = [{"seed": 1}, {"seed": 2, "guide": CALL, "end_ids": (IM_END,)}, {"seed": 3, "guide": WORDS}]
    inboxes = [served.send(PROMPT, 30, **request)[0] for request in requests]
    for inbox in inboxes:
        inbox.wait()
    assert [inbox.ids for inbox in inboxes] == [served.generate(PROMPT, 30, **request).ids for request in requests]


def test_a_cancelled_guided_request_is_freed(served: Served) -> None:
    inbox, generation = served.send(PROMPT, 200, guide=WORDS)
    inbox.wait_for_tokens()
    generation.mark_cancelled()
    inbox.wait()
    assert inbox.finish_reason == "cancelled"
    assert served.stats()["live"] == 0


class HeldCompiler:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []

    def compile(self, guide: Guide, done: Callable[[Future[Any]], None]) -> None:
        future: Future[Any] = Future()
        future.add_done_callback(done)
        self.waiting.append((future, done))

    def close(self) -> None:
        for future, _ in self.waiting:
            future.cancel()


def test_other_requests_go_on_while_a_grammar_is_compiled_and_a_close_fails_it() -> None:
    with serving() as start:
        held = start(guides=HeldCompiler())
        waits, _ = held.send([1, 2], 4, guide=WORDS)
        assert len(held.generate([1, 2], 4).ids) == 4
        assert not waits.ended.is_set()
    assert waits.error == SHUTTING_DOWN


def test_a_compiler_that_breaks_fails_its_request_only() -> None:
    with serving() as start:
        compiler = HeldCompiler()
        held = start(guides=compiler)
        waits, _ = held.send([1, 2], 4, guide=WORDS)
        compiler.waiting[0][0].set_exception(RuntimeError("out of order"))
        waits.wait()
        assert waits.error == "the grammar could not be compiled: out of order"
        assert len(held.generate([1, 2], 4).ids) == 4


class Exhausted:
    """A matcher that gives up after its first token, as one does whose grammar grows too complex."""

    def __init__(self) -> None:
        self.consumed = 0

    def consume_token(self, token: int) -> bool:
        self.consumed += 1
        return False

    def compute_bitmask(self) -> bytes:
        return bytes([255] * 12)

    def get_error(self) -> str:
        return "Parser too complex" if self.consumed else ""

    def is_accepting(self) -> bool:
        return False


def test_a_grammar_that_grows_too_complex_fails_its_request_only() -> None:
    with serving() as start:
        compiler = HeldCompiler()
        held = start(guides=compiler)
        waits, _ = held.send([1, 2], 4, guide=WORDS)
        compiler.waiting[0][0].set_result(GuideState(Exhausted(), [], 96, CPU))
        waits.wait()
        assert waits.error == "guided_decoding_guide: Parser too complex"
        assert len(held.generate([1, 2], 4).ids) == 4


def test_a_model_without_a_usable_tokenizer_does_not_load(tmp_path: Any) -> None:
    with pytest.raises(SettingsError, match=r"parameter guided_decoding: .*tokenizer\.json is not usable"):
        GuideCompiler(tmp_path / "tokenizer.json", VOCAB, CPU)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"parameter guided_decoding: .*tokenizer\.json is not usable"):
        GuideCompiler(tmp_path / "tokenizer.json", VOCAB, CPU)
