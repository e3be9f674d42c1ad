"""The baseline's rules, written down once more in the plainest way: whole id lists, no sharing, no speed.

It shares no code with ``adapter.trajectory``. A tree is nested lists, ``[message, turn, children]``, ``turn`` being
``(number, prompt ids, output ids, log probs)`` or None. A sample is ``(tokens, leading prompt length, mask, log probs)``.
"""

from __future__ import annotations

from typing import Any

Tree = list[Any]
Turn = tuple[int, list[int], list[int], list[float]]
ReferenceSample = tuple[list[int], int, list[int], list[float]]


class Reference:
    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.root: Tree = [None, None, []]
        self.turns = 0

    def record(
        self, prompt: list[int], output: list[int], log_probs: list[float], messages: list[dict[str, Any]], reply: Any
    ) -> None:
        node, rest = self.root, list(messages)
        while rest:
            equal = [child for child in node[2] if child[0] == rest[0]]
            if not equal:
                break
            node, rest = equal[0], rest[1:]
        if rest and rest[0]["role"] == "assistant":
            assistants = [child for child in node[2] if child[0] is None or child[0]["role"] == "assistant"]
            if len(assistants) == 1 and assistants[0][1] and not assistants[0][2]:
                (only,) = assistants
                if len(only[1][2]) < self.threshold:
                    only[0], only[1] = rest[0], None
                    node, rest = only, rest[1:]
        for message in rest:
            node[2].append([message, None, []])
            node = node[2][-1]
        self.turns += 1
        node[2].append([reply, (self.turns, prompt, output, log_probs), []])

    def samples(self) -> list[ReferenceSample]:
        seen: set[int] = set()
        made: list[ReferenceSample] = []
        for chain in chains_of(self.root):
            made += linearize(chain, self.threshold, seen)
        return made


def chains_of(node: Tree) -> list[list[Turn]]:
    """The turns above each leaf, leaves depth first."""
    own = [node[1]] if node[1] else []
    if not node[2]:
        return [own]
    return [own + below for child in node[2] for below in chains_of(child)]


def linearize(chain: list[Turn], threshold: int, seen: set[int]) -> list[ReferenceSample]:
    samples: list[ReferenceSample] = []
    held: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    leading = start = -1

    def close() -> None:
        if any(mask[leading:]):
            samples.append((held, leading, mask[leading:], log_probs[leading:]))

    for number, prompt, output, output_log_probs in chain:
        common = 0
        while common < min(len(held), len(prompt)) and held[common] == prompt[common]:
            common += 1
        if leading >= 0 and common < len(held) and not (common >= start and len(output) < threshold):
            close()
            leading = -1
        if leading < 0:
            held, mask, log_probs, leading = [], [], [], len(prompt)
        elif common < len(held):
            del held[start:], mask[start:], log_probs[start:]
        new = prompt[len(held) :]
        held = held + new + output
        trains = number not in seen
        seen.add(number)
        start = len(held) - len(output)
        mask = mask + [0] * len(new) + [int(trains)] * len(output)
        log_probs = log_probs + [0.0] * len(new) + (output_log_probs if trains else [0.0] * len(output))
    if leading >= 0:
        close()
    return samples
