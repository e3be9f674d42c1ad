"""The trajectory of one session: a forest of messages, with the ids of every generated turn.

``match`` is pure and says where a request belongs; ``commit`` is the only mutation, apart from ``record_interrupted``. A
request is matched when it arrives and committed when its reply is complete, and other turns may have been committed in
between. Under ``template`` commit sees that by the plan's revision and matches again, so the tree only depends on the order
of commits. Under ``keep`` the plan stands: its ids were sent, and nothing that it rests on ever changes.

Invariants:

    ids(node) == prompt_ids ++ output_ids as recorded, byte for byte, for every generated node;
    a generation's base is the turn before it on its path (so samples need no comparison of ids), and under ``keep``
    its prompt begins with all of base.ids(), unless the template had to be rendered as a whole;
    a rejected turn changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from adapter.trajectory.errors import TrajectoryDamaged
from adapter.trajectory.explain import TurnExplanation, explain
from adapter.trajectory.export import Export, ExportOptions, export_chains
from adapter.trajectory.forest import Forest
from adapter.trajectory.generation import Generation, check_turn
from adapter.trajectory.heads import NO_HEAD, Head
from adapter.trajectory.keep import match_kept
from adapter.trajectory.ledger import DropReason
from adapter.trajectory.matching import match_by_template
from adapter.trajectory.mounting import check_prompt
from adapter.trajectory.node import Node
from adapter.trajectory.plan import OpenEnded, Plan, Recut
from adapter.trajectory.rebuilding import Rebuilding
from adapter.trajectory.recording import record, set_aside
from adapter.trajectory.samples import Sample, SampleFields
from adapter.trajectory.saved import SavedTurn, Told, save_turn
from adapter.trajectory.walk import Request
from adapter.types import HistoryPolicy, Message, TurnRecord

Save = Callable[[SavedTurn], object]

FORK_THRESHOLD_TOKENS = 1024
"""Tokens. Outputs from this length on are never given up to keep a session in fewer samples. The ancestor's default."""


class PathEntry(TypedDict):
    """One message of a path, for display."""

    role: str
    message: Message | None
    has_generation_record: bool
    turn_index: int | None


class Trajectory:
    """What one session said and sampled.

    ``require_log_probs`` makes a turn without log probs an error; otherwise it trains with 0.0. ``policy`` is how
    history is matched and what the model sees of it; ``keep`` never gives up an output, so it knows no fork threshold.
    """

    def __init__(
        self,
        fork_threshold_tokens: int | None = FORK_THRESHOLD_TOKENS,
        require_log_probs: bool = False,
        *,
        policy: HistoryPolicy = HistoryPolicy.TEMPLATE,
    ) -> None:
        self.policy = policy
        self.sampled_tokens = 0
        """Output tokens of all turns and of interrupted replies."""
        self._forest = Forest()
        if policy is HistoryPolicy.TEMPLATE:
            self._forest.root(NO_HEAD)
        self._fork_threshold = FORK_THRESHOLD_TOKENS if fork_threshold_tokens is None else fork_threshold_tokens
        if policy is HistoryPolicy.KEEP:
            self._fork_threshold = 0
        self._require_log_probs = require_log_probs

    @property
    def root(self) -> Node:
        """The root of the first head."""
        return self._forest.roots[0].node

    @property
    def heads(self) -> list[Head]:
        """In order of arrival."""
        return [root.head for root in self._forest.roots]

    @property
    def turn_count(self) -> int:
        """Turns committed, those that were merged away included."""
        return self._forest.turns

    @property
    def rewritten_tokens(self) -> int:
        """Sampled tokens that rewrite-merges took out of the tree."""
        return self._forest.dropped[DropReason.REWRITTEN]

    @property
    def interrupted_tokens(self) -> int:
        """Sampled tokens of interrupted replies that no client replayed."""
        return self._forest.dropped[DropReason.INTERRUPTED]

    def match(
        self,
        messages: Sequence[Message],
        *,
        head: Head | None = None,
        refs: Sequence[Collection[int]] = (),
        recut: Recut | None = None,
        continues: OpenEnded | None = None,
    ) -> Plan:
        """Where a request with these messages belongs. Changes nothing.

        ``refs`` are read under ``keep`` only. ``refs[i]`` are the turns, by the number that they were
        committed with, that authenticated handles in message ``i`` refer to. Without ``recut`` interrupted turns are
        not taken up again. ``continues`` says that the last message is the beginning of the reply, and which replies can be
        gone on from.
        """
        request = Request(tuple(messages), refs)
        if self.policy is HistoryPolicy.TEMPLATE:
            return match_by_template(self._forest, request, head or NO_HEAD, self._fork_threshold, recut, continues)
        return match_kept(self._forest, request, head or NO_HEAD, recut, continues)

    def commit(
        self,
        plan: Plan,
        turn: TurnRecord,
        response_message: Message | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        number: int | None = None,
        opening_tokens: int = 0,
        save: Save | None = None,
    ) -> Generation:
        """Add the turn that answered ``plan.messages``.

        ``number`` is what handles in the reply refer to. ``opening_tokens`` of the prompt render ``plan.opening``, where
        known ids follow it. Messages become part of the tree and must not be changed afterwards; arrays are copied. ``save`` is
        called with what ``rebuild`` needs, after everything was checked and before anything changes: if it raises, nothing does.

        Raises: TurnRejected; PromptMismatch, if the prompt is not what the plan asked for; ValueError, if the plan has no
        messages.
        """
        plan = self._checked(plan, turn, opening_tokens)
        if save is not None:
            told = Told(number, opening_tokens, metadata or {})
            save(save_turn(self._forest, plan, turn, response_message, told))
        node, _ = record(
            self._forest,
            plan,
            turn,
            response_message,
            number=number,
            opening_tokens=opening_tokens,
            metadata=metadata,
        )
        assert node.generation is not None
        self.sampled_tokens += int(node.generation.output.size)
        return node.generation

    def record_interrupted(
        self,
        plan: Plan,
        turn: TurnRecord,
        message: Message,
        *,
        number: int | None = None,
        opening_tokens: int = 0,
        save: Save | None = None,
    ) -> None:
        """Keep what was sampled of a reply that was cut off; ``message`` is what the client had been given of it.

        It is no turn and in no sample. If the client replays a part of it, that part becomes a turn, just before the turn
        that goes on from it; what is not replayed counts as dropped. Raises as ``commit`` does.
        """
        plan = self._checked(plan, turn, opening_tokens)
        if turn.output_ids.size:
            if save is not None:
                save(save_turn(self._forest, plan, turn, message, Told(number, opening_tokens)))
            set_aside(self._forest, plan, turn, message, number, opening_tokens)
            self.sampled_tokens += int(turn.output_ids.size)

    def record_turn(
        self,
        *,
        turn: TurnRecord,
        prompt_messages: Sequence[Message],
        response_message: Message | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Match and commit at once. Without prompt messages nothing happens. Raises: TurnRejected."""
        if prompt_messages:
            self.commit(self.match(prompt_messages), turn, response_message, metadata)

    def rebuild(self, saved: Iterable[tuple[SavedTurn, bool]]) -> None:
        """Carry out saved turns, in their order, on an empty trajectory of the policy that they were saved under.

        The flag says whether a turn was committed or interrupted. Raises: TrajectoryDamaged.
        """
        rebuilding = Rebuilding(self._forest)
        try:
            for turn, is_committed in saved:
                self.sampled_tokens += rebuilding.commit(turn) if is_committed else rebuilding.set_aside(turn)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise TrajectoryDamaged(f"a saved turn does not fit what was saved before it: {error!r}") from error
        finally:
            rebuilding.close()

    def gone_on_from(self) -> set[int]:
        """Numbers of the turns behind which the conversation went on: whoever asked for those had their replies."""
        nodes = (node for chain in self.chains() for node in chain[:-1])
        return {node.generation.number for node in nodes if node.generation is not None and node.generation.number}

    def oldest_version(self, model: str) -> int | None:
        """The oldest weight version among the tokens in the tree that ``model`` sampled, or nobody knows which; None if none was
        recorded."""
        turns = (node.generation for chain in self.chains() for node in chain if node.generation is not None)
        own = (turn for turn in turns if turn.model in (model, ""))
        return min((span.version for turn in own for span in turn.versions), default=None)

    def export(self, *, base_sample: Sample, **options: Unpack[ExportOptions]) -> Export:
        """Training samples and their ledger. Changes nothing. Raises: LedgerMismatch."""
        return export_chains(
            self.chains(),
            SampleFields(base_sample, **options),
            fork_threshold_tokens=self._fork_threshold,
            sampled_tokens=self.sampled_tokens,
            dropped_tokens=self._forest.dropped,
        )

    def explain(self) -> list[TurnExplanation]:
        """Of every turn in the tree: how it was matched, and what its prompt is made of. In the order of commits."""
        return explain(self._forest.roots, self.policy)

    def chains(self) -> Iterator[tuple[Node, ...]]:
        """For each leaf the nodes above it and itself, roots left out; depth first, siblings as they came."""
        for root in self._forest.roots:
            yield from root.chains()

    def paths(self) -> list[list[PathEntry]]:
        """The tree for display: a list of messages per leaf."""
        return [[_entry(node) for node in chain] for chain in self.chains()]

    def _checked(self, plan: Plan, turn: TurnRecord, opening_tokens: int) -> Plan:
        """Refuse what must not be recorded; gives the plan as it is to be carried out."""
        if not plan.messages:
            raise ValueError("a turn answers at least one message")
        check_turn(turn, require_log_probs=self._require_log_probs)
        if self.policy is HistoryPolicy.TEMPLATE and plan.revision != self.turn_count:
            continues = (lambda _: True) if plan.continues else None
            plan = self.match(plan.messages, head=plan.head, recut=plan.recut, continues=continues)
        check_prompt(plan, turn.prompt_ids, opening_tokens)
        return plan


def _entry(node: Node) -> PathEntry:
    return {
        "role": node.role,
        "message": node.message,
        "has_generation_record": node.generation is not None,
        "turn_index": node.turn_index,
    }
