"""Auditor: when the audits of a batcher run, and on which models. All of it runs in the batcher's worker thread."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np

from offramp.inference import Classifier, Prediction
from offramp.inference.classifier import NEVER
from offramp.policy import Decision
from offramp.policy.ranking import Ranking, RankRule
from offramp.runtimes import Tokens
from offramp.serve.audit import Audit
from offramp.serve.ladder import Ladder
from offramp.serve.list_audit import ListAudit

BUSY_SHARE = 0.05
"""The share of the time that audits may take while requests wait."""
MOST_CREDIT = 1.0
"""Seconds of that time that may be saved up."""

Example = TypeVar("Example")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Auditor:
    """Compares sampled predictions with the reference, and forbids rungs whose certificates prove wrong.

    Args:
        classifier: the model that serves, which is run to full depth.
        original: the model that the certificates name, if that is another. Nothing is compared until it is loaded.
        audits: each with the ladder whose rungs it checks.
    """

    def __init__(
        self,
        classifier: Classifier,
        original: Future[Classifier] | None,
        audits: Sequence[tuple[Audit | ListAudit, Ladder[Any]]],
    ) -> None:
        self.classifier, self.original = classifier, original
        self.turns = deque(audits)
        self.credit = 0.0
        """Seconds that audits may still take while requests wait; negative after a long one."""

    @property
    def has_work(self) -> bool:
        is_ready = self.original is None or self.original.done()
        return is_ready and any(audit.pending for audit, _ in self.turns)

    def run_while_busy(self, seconds: float) -> None:
        """Runs one step after a window that took `seconds`, if audits have time left. Lax rungs are used only while
        requests wait, so that is when they must be audited."""
        self.credit = min(self.credit + BUSY_SHARE * seconds, MOST_CREDIT)
        if self.credit > 0 and self.has_work:
            start = time.monotonic()
            try:
                self.run_step()
            finally:
                self.credit -= time.monotonic() - start

    def run_step(self) -> None:
        """Runs one text, or one micro-batch of a list, through the reference; no more, so that new requests do not
        wait long."""
        self.turns.rotate()
        audit, ladder = next((audit, ladder) for audit, ladder in self.turns if audit.pending)
        if isinstance(audit, ListAudit):
            broken = audit.examine(*self.references(rank_to_the_end))
        else:
            broken = audit.examine(*self.references(run_to_the_end))
        if broken is not None:
            ladder.forbid(broken)
            log.error(
                "rung %d (%s) loses more than its certificate allows; "
                "it and all rungs below it are no longer used",
                broken,
                ladder.rungs[broken],
            )

    def references(self, run: Callable[[Classifier, Example], Result]) -> list[Callable[[Example], Result]]:
        """Full depth, and the original if there is one."""
        models = [self.classifier, *([self.original.result()] if self.original else [])]
        return [partial(run, each) for each in models]


def run_to_the_end(classifier: Classifier, tokens: Tokens) -> Prediction:
    return next(classifier.predict_tokens([tokens], NEVER))


def rank_to_the_end(classifier: Classifier, tokens: Sequence[Tokens]) -> Iterator[Decision]:
    """The decision after every micro-batch."""
    rule = RankRule.full_depth(len(classifier.runtime.info.exits))
    ranking = Ranking(rule, np.array([len(tokens)]), np.array([rule.top_k]))
    return classifier.engine.run_lists(tokens, ranking)
