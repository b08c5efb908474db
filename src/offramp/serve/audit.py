"""Audit: how often the answers of each rung are not those of full depth, by bounds that hold at any time.

A share of the answers, drawn at random, is kept and run to full depth when there is time. When it is certain that
more of them differ than a certificate allows, the certificate is broken: the data are not what they were.

A certificate about accuracy allows right answers to be lost, and no labels tell here which answers are right. Those
lost are among those that differ, so few that differ prove that it holds; many that differ do not prove that it is
broken.
"""

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from offramp.classifier import Prediction
from offramp.criteria.base import Criterion
from offramp.policy import Policy
from offramp.policy.text import class_indices
from offramp.serve.confidence_sequence import bounds, is_above
from offramp.stages import Tokens

LATELY = 1000
"""Answers after which counting begins anew, beside the count of all: a long good past must not hide a change."""
RECENT = 10_000
"""Answers whose exits are compared with those at calibration."""
DRIFT = 0.1
"""Distance from which on exits have drifted. Chance alone makes about 0.06, of 12 exits and as many answers as:"""
ENOUGH = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """What is known of one rung."""

    rung: int
    policy: str
    examined: int
    """Answers compared with full depth."""
    disagreed: int
    """How many of them were not the same."""
    lower: float
    upper: float
    """The share of all answers that are not those of full depth lies between these, with confidence 1 - delta at
    all times together."""
    by_class: Mapping[str, tuple[float, float]]
    """The same bounds for the answers that full depth gives a class, if the certificate has a bound for each."""
    epsilon: float | None
    """What the certificate allows, if it speaks of all answers alike."""
    verdict: str | None
    """Of the certificate: "holds", "open" or "broken"; None without one."""
    exits: tuple[int, ...]
    """How many of the latest answers left at each exit."""
    drift: float | None
    """Total variation distance of these from the exits at calibration, 0 to 1; None if those are not known."""
    drifted: bool
    """Whether that is enough for a warning."""


class Kept(NamedTuple):
    """An answer that is to be examined."""

    tokens: Tokens
    prediction: Prediction


class Audit:
    """What is known of all rungs. Threads may share it.

    Args:
        policies: the rungs of the ladder.
        layers: of the model's exits.
        share: of the answers that are examined.
        delta: the probability, for each rung, that a certificate which holds is ever called broken.
        keep: how many answers of each rung may wait to be examined; then the oldest is dropped.
        seed: of the draw.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        layers: Sequence[int],
        *,
        share: float = 0.01,
        delta: float = 0.05,
        keep: int = 256,
        seed: int = 0,
    ) -> None:
        self.share = share
        self.dropped = 0
        """Answers that were drawn and then dropped for newer ones."""
        self._watches = [Watch(policy, layers, delta) for policy in policies]
        self._kept = [deque[Kept](maxlen=keep) for _ in policies]
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def kept(self) -> int:
        """Answers that wait to be examined."""
        return sum(map(len, self._kept))

    def offer(self, rung: int, tokens: Tokens, prediction: Prediction) -> None:
        """An answer that this rung alone decided, within no limits of its own."""
        with self._lock:
            self._watches[rung].count_exit(prediction.layer)
            if self._random.random() < self.share:
                kept = self._kept[rung]
                self.dropped += len(kept) == kept.maxlen
                kept.append(Kept(tokens, prediction))

    def examine(self, full_depth: Callable[[Tokens], Prediction]) -> int | None:
        """Compare one answer that was kept, of the rung least is known of. The rung, if this has just broken its
        certificate."""
        with self._lock:
            rungs = [rung for rung, kept in enumerate(self._kept) if kept]
            if not rungs:
                return None
            rung = min(rungs, key=lambda rung: self._watches[rung].all.examined)
            tokens, prediction = self._kept[rung].popleft()
        watch = self._watches[rung]
        full = prediction if watch.is_full_depth(prediction) else full_depth(tokens)
        with self._lock:
            was_broken = watch.broken
            watch.see(prediction, full)
            return rung if watch.broken and not was_broken else None

    def accounts(self) -> list[Account]:
        with self._lock:
            return [watch.account(rung) for rung, watch in enumerate(self._watches)]


class Watch:
    """One rung."""

    def __init__(self, policy: Policy, layers: Sequence[int], delta: float) -> None:
        self.policy = policy
        self.layers = tuple(layers)
        self.delta = delta
        self.proven: Mapping[str, Any] = policy.certificate or {}
        exits = tuple(map(float, self.proven.get("exits", ())))
        self.calibrated = exits if len(exits) == len(self.layers) else None
        """Shares of the exits at calibration; certificates did not always tell."""
        self.latest: deque[int] = deque()
        """The layers of the latest answers."""
        self.exits = Counter[int]()
        """The same, counted."""
        self.drifted = self.broken = False
        self.all = Tally()
        self.by_class: dict[str, Tally] = {}
        self.bounded: list[tuple[Tally, float]] = []
        """What the certificate bounds and answers without labels can tell of, with the bound."""
        epsilon, of = self.proven.get("epsilon"), self.proven.get("of")
        if isinstance(epsilon, Mapping):
            if of == "disagreement":
                self.by_class = {name: Tally() for name in epsilon}
                self.bounded = [*zip(self.by_class.values(), epsilon.values(), strict=True)]
        elif of == "disagreement" or (of == "accuracy" and self.proven.get("tolerance") is None):
            # two numbers within a tolerance of one another may still be a right one and a wrong one
            self.bounded = [(self.all, float(self.proven["epsilon"]))]

    def count_exit(self, layer: int) -> None:
        if len(self.latest) == RECENT:
            self.exits[self.latest.popleft()] -= 1
        self.latest.append(layer)
        self.exits[layer] += 1
        drift = self.drift()
        if drift is None or len(self.latest) < ENOUGH:
            return
        if drift > DRIFT and not self.drifted:
            log.warning("answers of %s leave elsewhere than at calibration: drift %.2f", self.policy, drift)
        self.drifted = drift > (DRIFT / 2 if self.drifted else DRIFT)  # not back and forth

    def drift(self) -> float | None:
        """Total variation distance of the latest exits from calibration's, if those are known."""
        if not self.calibrated or not self.latest:
            return None
        now = [self.exits[layer] / len(self.latest) for layer in self.layers]
        return sum(abs(a - b) for a, b in zip(now, self.calibrated, strict=True)) / 2

    def is_full_depth(self, prediction: Prediction) -> bool:
        """Whether it went all the way, and its answer is the last exit's own."""
        own_answer = type(self.policy.criterion).answer is Criterion.answer
        return own_answer and prediction.layer == self.layers[-1]

    def see(self, prediction: Prediction, full: Prediction) -> None:
        differs = self.differ(prediction, full)
        self.all.add(differs)
        if self.by_class and full.label is not None:
            names = tuple(full.probabilities)
            which = class_indices(self.by_class, names).index(names.index(str(full.label)))
            [*self.by_class.values()][which].add(differs)
        if self.proven.get("of") == "disagreement":
            delta = self.delta / len(self.bounded)
            self.broken |= any(tally.is_above(epsilon, delta) for tally, epsilon in self.bounded)

    def differ(self, prediction: Prediction, full: Prediction) -> bool:
        """As calibration tells answers apart; in a regression any difference counts where none is tolerated."""
        if full.probabilities:
            return prediction.label != full.label
        return not abs(prediction.score - full.score) <= (self.proven.get("tolerance") or 0.0)

    def account(self, rung: int) -> Account:
        lower, upper = self.all.bounds(self.delta)
        epsilon = self.proven.get("epsilon")
        return Account(
            rung=rung,
            policy=str(self.policy),
            examined=self.all.examined,
            disagreed=self.all.lost,
            lower=lower,
            upper=upper,
            by_class={
                name: tally.bounds(self.delta / len(self.by_class)) for name, tally in self.by_class.items()
            },
            epsilon=None if isinstance(epsilon, Mapping) else epsilon,
            verdict=self.verdict(),
            exits=tuple(self.exits[layer] for layer in self.layers),
            drift=self.drift(),
            drifted=self.drifted,
        )

    def verdict(self) -> str | None:
        if not self.proven:
            return None
        if self.broken:
            return "broken"
        holds = [
            tally.bounds(self.delta / len(self.bounded))[1] <= epsilon for tally, epsilon in self.bounded
        ]
        return "holds" if holds and all(holds) else "open"


class Tally:
    """Answers that differ, of those examined: of all, and lately. Half of delta goes to each."""

    def __init__(self) -> None:
        self.examined = self.lost = 0
        self.late_examined = self.late_lost = 0
        self.begun = 1
        """How often counting has begun."""

    def add(self, lost: bool) -> None:
        if self.late_examined == LATELY:
            self.late_examined = self.late_lost = 0
            self.begun += 1
        self.examined += 1
        self.lost += lost
        self.late_examined += 1
        self.late_lost += lost

    def bounds(self, delta: float) -> tuple[float, float]:
        return bounds(self.lost, self.examined, delta / 2)

    def is_above(self, epsilon: float, delta: float) -> bool:
        """Whether the share of answers that differ is certainly above epsilon, or was lately.

        1/2 + 1/6 + 1/12 + ... is 1, so that beginning again and again spends no more than delta.
        """
        late = delta / 2 / (self.begun * (self.begun + 1))
        return is_above(epsilon, self.lost, self.examined, delta / 2) or is_above(
            epsilon, self.late_lost, self.late_examined, late
        )
