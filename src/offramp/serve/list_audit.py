"""ListAudit: what each rung of rank rules loses against the reference's top k. `audit` does it for predictions.

The loss of a list is the one that the certificate bounds. A list is compared in steps of one micro-batch, so that a
long one does not keep requests waiting.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.guarantees.losses import LOSSES, Reference, ranks
from offramp.policy import Decision
from offramp.policy.ranking import relevance
from offramp.problems import Array
from offramp.runtimes import Tokens
from offramp.serve.audit import Sampler

KEPT_LISTS = 16
"""How many lists of a rung wait to be examined; long ones take memory."""

Steps = Callable[[Sequence[Tokens]], Iterator[Decision]]
"""Runs a list to full depth; yields its decision after every micro-batch."""


@dataclass(frozen=True)
class RankedList:
    tokens: Sequence[Tokens]
    scores: Array
    """(documents,) by which they were ranked."""
    top_k: int


class ListAudit(Sampler[RankedList]):
    """Audits lists that were ranked for the k of their rule."""

    _comparison: Generator[None, None, int | None] | None = None
    """Of the list that is being compared."""

    @property
    def pending(self) -> int:
        return super().pending + (self._comparison is not None)

    def offer(self, rung: int, ranked: RankedList, layers: Sequence[int]) -> None:
        """Counts a list ranked by this rung's rule alone, and maybe keeps it; `layers` are those of its exits.

        The exit of one of its documents is counted: those of a list are not independent.
        """
        self.draw(rung, [self._random.choice(layers)], [ranked])

    def examine(self, full_depth: Steps, original: Steps | None = None) -> int | None:
        """Runs one micro-batch of a kept list. Returns the rung if this breaks its certificate. `original` is the
        model that certificates name, if that is not full depth."""
        if self._comparison is None:
            self._comparison = self.compare(full_depth, original)
        try:
            next(self._comparison)
        except StopIteration as end:
            self._comparison = None
            broken: int | None = end.value
            return broken
        return None

    def compare(self, full_depth: Steps, original: Steps | None) -> Generator[None, None, int | None]:
        taken = self.take()
        if taken is None:
            return None
        rung, ranked = taken
        run = original if original is not None and self.has_reference(rung) else full_depth
        for latest in run(ranked.tokens):
            decision = latest
            yield
        certificate = self._rungs[rung].certificate
        loss = LOSSES[certificate.risk if certificate else "overlap"]
        order, full = (ranks(scores[None]) for scores in (ranked.scores, relevance(decision.logits)))
        reference = Reference(full, sizes=np.array([len(ranked.tokens)]), top_k=ranked.top_k)
        lost = float(loss.values(order, reference)[0])
        return self.record(rung, lambda account: account.add(lost))
