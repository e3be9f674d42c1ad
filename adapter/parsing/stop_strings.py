"""The client's stop strings, found in decoded text as it arrives.

The engine stops at ids, a client at text, and a stop string may begin and end in the middle of tokens, so it is looked for here.
All strings are searched at once, one step per character (Aho and Corasick 1975, "Efficient string matching"): the state is the
longest end of the text so far that begins a stop string, which is also exactly what must be held back.

The match that ends first wins, and of those the one that began first; that makes it the same however the text is cut. Stop strings
apply to all of the reply's text as decoded: reasoning, visible text and tool-call markup. A stand-in (``adapter.parsing.markers``)
counts as the text that it stands for; it is passed on whole, or as the part of its text that comes before a match.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from adapter.parsing.markers import Markers

_NO_MARKERS = Markers()


class StopStrings:
    """Passes text on until a stop string is complete. ``hit`` is then that string; it and what follows are not passed on."""

    def __init__(self, stops: Sequence[str], markers: Markers = _NO_MARKERS) -> None:
        self.hit: str | None = None
        self._spelled = markers.spelled
        self._trie = _Trie(stops) if any(stops) else None
        self._node = 0
        self._held = ""

    @property
    def none(self) -> bool:
        """Whether there are no stop strings, so that text passes as it comes."""
        return self._trie is None

    def feed(self, text: str) -> str:
        """The text that no stop string can reach any more; "" once ``hit`` is set."""
        if self._trie is None:
            return text
        return "" if self.hit is not None else self._search(self._trie, text)

    def _search(self, trie: _Trie, text: str) -> str:
        buffer = self._held + text
        node = self._node
        for at, unit in enumerate(text, len(self._held)):
            for end, char in enumerate(self._spelled(unit), 1):
                node = trie.step(node, char)
                stop = trie.matched[node]
                if stop is not None:
                    self.hit = stop
                    self._held = ""
                    return self._before(buffer[:at], self._spelled(unit)[:end], len(stop))
        self._node = node
        free = self._begin(buffer, trie.depth[node])
        self._held = buffer[free:]
        return buffer[:free]

    def _before(self, units: str, last: str, length: int) -> str:
        """What comes before a match of ``length`` characters that ends with ``last``, the part of a unit behind ``units``."""
        if length <= len(last):
            return units + last[: len(last) - length]
        length -= len(last)
        begin = self._begin(units, length)
        matched = self._spelled(units[begin:])
        return units[:begin] + matched[: len(matched) - length]

    def _begin(self, units: str, length: int) -> int:
        """Where the unit stands in which the last ``length`` characters of the text that ``units`` spell begin."""
        begin = max(0, len(units) - length)
        surplus = len(self._spelled(units[begin:])) - length
        while surplus > 0 and surplus >= len(self._spelled(units[begin])):
            surplus -= len(self._spelled(units[begin]))
            begin += 1
        return begin

    def finish(self) -> str:
        """The text still held back."""
        held, self._held = self._held, ""
        return held


class _Trie:
    """The automaton. Node 0 is the root; lists are indexed by node."""

    def __init__(self, words: Sequence[str]) -> None:
        self.depth = [0]
        self.matched: list[str | None] = [None]
        """The longest word that ends here."""
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        for word in words:
            self._insert(word)
        self._link()

    def step(self, node: int, char: str) -> int:
        """Amortised constant: each failure link makes the state shorter, each character longer by at most one."""
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)

    def _insert(self, word: str) -> None:
        node = 0
        for char in word:
            if char not in self._next[node]:
                self._next[node][char] = len(self.depth)
                self.depth.append(self.depth[node] + 1)
                self.matched.append(None)
                self._next.append({})
                self._fail.append(0)
            node = self._next[node][char]
        if node:
            self.matched[node] = word

    def _link(self) -> None:
        """Failure links, breadth first. A node's own word is longer than any that its failure link matches."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                self._fail[child] = self.step(self._fail[node], char)
                if self.matched[child] is None:
                    self.matched[child] = self.matched[self._fail[child]]
                queue.append(child)
