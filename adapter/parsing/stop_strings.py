"""The client's stop strings, found in decoded text as it arrives.

The engine stops at ids, a client at text, and a stop string may begin and end in the middle of tokens, so it is looked for here.
All strings are searched at once, one step per character (Aho and Corasick 1975, "Efficient string matching"): the state is the
longest end of the text so far that begins a stop string, which is also exactly what must be held back.

The match that ends first wins, and of those the one that began first; that makes it the same however the text is cut. Stop strings
apply to all of the reply's text as decoded: reasoning, visible text and tool-call markup.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string is complete. ``hit`` is then that string; it and what follows are not passed on."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit: str | None = None
        self._trie = _Trie(stops) if any(stops) else None
        self._node = 0
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that no stop string can reach any more; "" once ``hit`` is set."""
        if self._trie is None:
            return text
        return "" if self.hit is not None else self._search(self._trie, text)

    def _search(self, trie: _Trie, text: str) -> str:
        buffer = self._held + text
        node = self._node
        for at, char in enumerate(text, len(self._held)):
            node = trie.step(node, char)
            stop = trie.matched[node]
            if stop is not None:
                self.hit = stop
                self._held = ""
                return buffer[: at + 1 - len(stop)]
        self._node = node
        free = len(buffer) - trie.depth[node]
        self._held = buffer[free:]
        return buffer[:free]

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
