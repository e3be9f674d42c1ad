"""How the next token is drawn: pure functions of one row of logits, the request's values, and (seed, position).

Order, as in vLLM and the OpenAI API: repetition penalty; frequency and presence penalty; end tokens banned by
``min_tokens``, and the mask of a guide; temperature; top_k; top_p over what top_k left. Temperature 0 is argmax.

The draw is the Gumbel-max trick (Gumbel 1954): argmax of the scores plus independent Gumbel noise is a sample of their
softmax. Noise is a hash of (seed, position, token id), so a request draws the same token whatever else is in its batch
and wherever it runs. Among such couplings this one suffers least from the rounding differences that batch shapes cause:
a token changes only where the two best noisy scores lie closer than the difference, about one draw in 10^5, while an
inverse CDF moves nearly every draw from the tail of the distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

NUCLEUS_WIDTH = 1024
"""Ranks looked at first for top_p: they nearly always hold the nucleus, at a tenth of the cost of a full sort."""

_BOUND = 1e30
"""Penalised logits are clamped to this, so that no finite penalty makes an infinity or a NaN of them."""

_MIN_TEMPERATURE = 1e-30
"""Positive temperatures below this act like it; a float32 quotient by anything smaller would overflow."""

_UINT64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea, Flood 2014)."""


class SamplingValues(Protocol):
    """The request's values, in range (``common.requests``); top_k 0 and top_p 1 keep all tokens."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...


class TokenHistory:
    """What penalties look at.

    ``seen``, bool [V]: tokens of prompt and output. ``counts``, float32 [V]: how often the output holds them.
    """

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int, device: torch.device | str) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[torch.as_tensor(prompt_ids, dtype=torch.int64, device=device)] = True
        self.counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)

    def add(self, token: int) -> None:
        """``token`` was sampled."""
        self.seen[token] = True
        self.counts[token] += 1


def has_penalties(values: SamplingValues) -> bool:
    """Whether a ``TokenHistory`` is needed."""
    return values.repetition_penalty != 1 or values.presence_penalty != 0 or values.frequency_penalty != 0


def draw(
    logits: Tensor,
    values: SamplingValues,
    position: int,
    history: TokenHistory | None,
    banned: Tensor | None,
    allowed: Tensor | None = None,
) -> Tensor:
    """The next token id, int64 []. ``logits`` float32 [V] is the model's own and is not written to.

    ``position`` counts the output tokens so far. ``banned``, int64 [n], are ids that must not come now; ``allowed``, bool [V],
    says which may, at least one.
    """
    if history is not None:
        logits = penalised(logits, values, history)
    if banned is not None:
        logits = logits.index_fill(0, banned, -torch.inf)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    if values.temperature == 0:
        return logits.argmax()
    scores = (logits - logits.max()) / max(values.temperature, _MIN_TEMPERATURE)
    ids, kept = truncated(scores, values.top_k, values.top_p)
    return ids[(kept + gumbel_noise(values.seed, position, ids)).argmax()]


def penalised(logits: Tensor, values: SamplingValues, history: TokenHistory) -> Tensor:
    """Logits after the repetition penalty (Keskar et al. 2019) over prompt and output, then the OpenAI API's frequency
    and presence penalties over the output."""
    factor = values.repetition_penalty
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(history.seen, repeated, logits)
    logits = logits - values.frequency_penalty * history.counts
    logits = logits - values.presence_penalty * (history.counts > 0)
    return logits.clamp(-_BOUND, _BOUND)


def truncated(scores: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Ids, int64 [n], and scores, float32 [n], of the tokens that may be drawn; the best one is always among them.

    The nucleus is the smallest set of best tokens whose probability, among those that top_k left, reaches ``top_p``.
    """
    if 0 < top_k < scores.numel():
        scores, ids = scores.topk(top_k)
    else:
        ids = torch.arange(scores.numel(), device=scores.device)
    if top_p >= 1:
        return ids, scores
    total = scores.logsumexp(0)
    ranked, order = scores.topk(min(NUCLEUS_WIDTH, scores.numel()))
    if (ranked - total).exp().sum() < top_p:
        ranked, order = scores.sort(descending=True)
    probabilities = (ranked - total).exp()
    # Mass strictly before a token, so that the one which crosses top_p is kept.
    keep = probabilities.cumsum(0) - probabilities < top_p
    keep[0] = True
    return ids[order[keep]], ranked[keep]


def gumbel_noise(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Gumbel noise, float32 [n], for ``token_ids``, int64 [n], at one position of one seed."""
    key = _mix_int(_mix_int(seed) + position * _GAMMA)
    bits = _mix(token_ids * _signed(_GAMMA) + _signed(key))
    # The upper 32 bits as a number in (0, 1]: small values, which make the winners, keep all of float32's precision.
    uniform = ((bits >> 32) & 0xFFFFFFFF).to(torch.float32).add(0.5).mul(2.0**-32)
    return -torch.log(-torch.log1p(-uniform))


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64; the masks make arithmetic shifts logical."""
    z = (z ^ ((z >> 30) & (_UINT64 >> 30))) * _signed(_MIX_1)
    z = (z ^ ((z >> 27) & (_UINT64 >> 27))) * _signed(_MIX_2)
    return z ^ ((z >> 31) & (_UINT64 >> 31))


def _mix_int(z: int) -> int:
    z &= _UINT64
    z = (z ^ (z >> 30)) * _MIX_1 & _UINT64
    z = (z ^ (z >> 27)) * _MIX_2 & _UINT64
    return z ^ (z >> 31)


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    return value - (1 << 64) if value >> 63 else value
