"""Accounts: what examples lose against the reference, and whether a rung's certificate proved wrong.

A certificate on accuracy bounds the correct predictions that are lost, and without labels nobody can tell which
predictions are correct. The lost ones are among those that differ, so few differences prove that such a certificate
holds, but many do not prove it broken.

All workers of a server, and of other servers with the same model and policy, share one account in a file, so that
they spend delta once; a restart goes on with it. Deleting the file starts the account anew.

An account is in one of two states. In the first it looks for proof that the certificate is wrong. Once found, it
looks for proof that the certificate holds on new traffic, and then it starts anew.
"""

import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from offramp.files import atomic_file
from offramp.guarantees.certificate import Certificate
from offramp.guarantees.guarantee import BY_CLASS, BY_EXIT
from offramp.guarantees.losses import LOSSES, OF_TAGS, Loss, Reference
from offramp.guarantees.sequential import INTERVAL, MOST_MONEY, ChangeTest, bounds
from offramp.inference import Prediction
from offramp.inference.tagger import Spans
from offramp.lists import Lists
from offramp.problems import MULTI_LABEL, REGRESSION, Array
from offramp.rules.rank import relevance

REPEATS = 3600.0
"""Seconds within which a text counts once."""
MOST_RECENT = 4096
"""How many texts are remembered for that."""
MOST_UNSAVED = 10_000
LOCK_SECONDS = 2.0
"""How long to wait for a worker that has the file; it has it for milliseconds unless it was stopped meanwhile."""
ALL = ""
"""The name of the tally of all examples, beside those of further bounds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """An example that was run by a policy and by the reference."""

    key: str
    """A hash of its tokens."""
    losses: Mapping[str, float]
    """By the name of the tally, for those that it counts in."""
    time: float
    """By `time.time`."""


@dataclass
class Tally:
    """Examples compared, and the sum of their losses, 1 for a prediction that differs."""

    test: ChangeTest | None
    """A test of what the certificate allows, if the audit can disprove it."""
    examined: int = 0
    lost: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=INTERVAL))
    """The latest losses."""

    def add(self, loss: float) -> None:
        self.examined += 1
        self.lost += loss
        self.latest.append(loss)
        if self.test:
            self.test.add(loss)

    def bounds(self, delta: float) -> tuple[float, float]:
        """Bounds on the mean loss that are valid at all times together with confidence 1 - delta."""
        return bounds(self.lost, self.examined, delta / 2)

    def to_json(self) -> dict[str, Any]:
        record = {"examined": self.examined, "lost": self.lost, "latest": [*self.latest]}
        return record | ({"examples": self.test.examples, "stakes": self.test.stakes} if self.test else {})

    def load(self, record: Mapping[str, Any]) -> None:
        self.examined, self.lost = int(record["examined"]), float(record["lost"])
        self.latest.extend(map(float, record["latest"]))
        if not 0 <= self.lost <= self.examined:
            raise ValueError("its counts are impossible")
        if self.test:
            stakes = [*map(float, record["stakes"])]
            if len(stakes) != len(self.test.stakes) or not all(0 <= stake <= MOST_MONEY for stake in stakes):
                raise ValueError("it is of another version")
            self.test.examples, self.test.stakes = int(record["examples"]), stakes


class Account:
    """
    Args:
        allowed: the bounds on mean losses that are tested, by the names of their tallies.
        delta: the probability that a certificate which holds is ever called broken, and that one which does not hold
            on new traffic is ever trusted again.
        names: the tallies beside that of all examples.
    """

    def __init__(self, allowed: Mapping[str, float], delta: float, names: Iterable[str] = ()) -> None:
        self.allowed, self.delta, self.names = allowed, delta, [ALL, *names]
        self.recent: dict[str, float] = {}
        """The time at which each text was counted, oldest first."""
        self.start(0.0, "")

    def start(self, now: float, broken: str) -> None:
        self.since = now
        """The time of the start; 0 if that is the first."""
        self.broken = broken
        """Why the certificate is no longer trusted; empty if it is."""
        self.tallies = {
            name: Tally(ChangeTest(self.allowed[name], above=not broken) if name in self.allowed else None)
            for name in self.names
        }

    def counted(self, key: str, now: float) -> bool:
        """Whether this text has been counted lately."""
        return now - self.recent.get(key, -REPEATS) < REPEATS

    def add_all(self, comparisons: Iterable[Comparison]) -> None:
        for comparison in comparisons:
            self.add(comparison)

    def add(self, comparison: Comparison) -> None:
        key, now = comparison.key, comparison.time
        if self.counted(key, now):
            return
        self.recent.pop(key, None)
        self.recent[key] = now
        while len(self.recent) > MOST_RECENT or now - next(iter(self.recent.values())) >= REPEATS:
            del self.recent[next(iter(self.recent))]
        for name, loss in comparison.losses.items():
            self.tallies[name].add(loss)
        money = {name: test.money for name, tally in self.tallies.items() if (test := tally.test)}
        if not money:
            return
        if self.broken and min(money.values()) >= 1 / self.delta:
            self.start(now, "")
        elif not self.broken and max(money.values()) >= len(money) / self.delta:
            self.start(now, self.reason(max(money, key=lambda name: money[name])))

    def bounds(self, name: str) -> tuple[float, float]:
        """The bounds of a tally; those of all but `ALL` hold together with confidence 1 - delta."""
        return self.tallies[name].bounds(self.delta / (max(len(self.names) - 1, 1) if name else 1))

    def reason(self, name: str) -> str:
        latest = self.tallies[name].latest
        which = f" ({name})" if name else ""
        return (
            f"the mean loss of the latest {len(latest)} examples{which} is {sum(latest) / len(latest):.1%}, "
            f"and {self.allowed[name]:.1%} is allowed"
        )

    def to_json(self) -> dict[str, Any]:
        tallies = {name: tally.to_json() for name, tally in self.tallies.items()}
        return {"since": self.since, "broken": self.broken, "tallies": tallies, "recent": self.recent}

    def fresh(self) -> "Account":
        """An empty one of the same kind."""
        return Account(self.allowed, self.delta, self.names[1:])

    def loaded(self, record: Mapping[str, Any]) -> "Account":
        """The one in a record; ValueError, KeyError, TypeError or AttributeError if there is none of this kind."""
        account = self.fresh()
        account.start(float(record["since"]), str(record["broken"]))
        for name, tally in account.tallies.items():
            tally.load(record["tallies"][name])
        account.recent = {str(key): float(time) for key, time in record["recent"].items()}
        return account


@dataclass
class KeptAccount:
    """An account that is kept in a file. While this cannot be used, the worker goes on with what it knows."""

    account: Account
    file: Path | None
    """None if the account ends with this process."""
    about: Mapping[str, str]
    """For people who read the file."""
    unsaved: deque[Comparison] = field(default_factory=lambda: deque(maxlen=MOST_UNSAVED))
    version: tuple[int, ...] | None = None
    """Identifies what was read or written last."""
    problem: str = ""
    """Why the file cannot be used."""

    def settle(self, comparisons: Sequence[Comparison]) -> None:
        """Adds these to the account, after what other workers have added."""
        if self.file is None:
            self.account.add_all(comparisons)
            return
        self.unsaved += comparisons
        try:
            if self.unsaved or version(self.file) != self.version:
                with FileLock(f"{self.file}.lock", LOCK_SECONDS):
                    self.merge(self.file)
            self.problem = ""
        except (OSError, NotImplementedError) as error:  # too slow, the disk is full, it cannot be locked
            self.account.add_all(comparisons)
            if not self.problem:
                log.error("the audit goes on without %s, and workers do not share it: %s", self.file, error)
            self.problem = str(error)

    def merge(self, file: Path) -> None:
        account = self.read(file)
        account.add_all(self.unsaved)
        if self.unsaved:
            with atomic_file(file) as draft:
                draft.write_text(json.dumps({**self.about, **account.to_json()}), encoding="utf-8")
        self.unsaved.clear()
        self.account, self.version = account, version(file)

    def read(self, file: Path) -> Account:
        try:
            return self.account.loaded(json.loads(file.read_bytes()))
        except FileNotFoundError:
            return self.account.fresh()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.error("%s does not hold an account of the audit (%s) and is replaced", file, error)
            return self.account


def version(file: Path) -> tuple[int, ...] | None:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True)
class Check:
    """A mean loss that is followed, and what a certificate says about it."""

    name: str
    """That of its tally; `ALL` if it is about all examples."""
    risk: str
    epsilon: float | None = None
    """What is allowed, if the certificate has a bound on it."""
    group: str = ""
    tolerance: float | None = None
    refutable: bool = False
    """Whether a higher loss breaks the certificate."""

    @property
    def loss(self) -> Loss:
        return LOSSES[self.risk]


def checks_of(certificate: Certificate | None, default: str) -> Iterator[Check]:
    """A check of all examples, and one for each bound that can be checked without labels and without categories. The
    loss of a correct prediction is bounded by the share of predictions that change, which cannot disprove it."""
    bounds = certificate.bounds if certificate else ()
    if len(bounds) != 1 or bounds[0].group:
        yield Check(ALL, default, tolerance=bounds[0].tolerance if bounds else None)
    for bound in bounds:
        assert certificate
        name = " ".join(filter(None, [bound.risk if len(certificate.by_risk()) > 1 else "", bound.group]))
        if not bound.loss.needs_labels and certificate.by in ("", BY_EXIT, BY_CLASS):
            yield Check(name, bound.risk, bound.epsilon, bound.group, bound.tolerance, refutable=True)
        elif name == ALL:
            # with a tolerance, a correct and a wrong number may still be within it of each other
            epsilon = bound.epsilon if bound.tolerance is None else None
            yield Check(ALL, default, epsilon, tolerance=bound.tolerance)


def losses_of(
    checks: Sequence[Check], predictions: Sequence[Any], reference: Sequence[Any], top_k: int | None
) -> dict[str, float]:
    """What an example loses, as in calibration, by the name of the check; without those for which it does not count.
    `top_k` is that of a list."""
    if isinstance(reference[0], Spans):
        full = reference[0].codes
        truth = Reference(full, words=Lists.consecutive([len(full)]))
        of_tags = {check.name: LOSSES[OF_TAGS.get(check.risk, check.risk)] for check in checks}
        return {name: float(loss.values(predictions[0].codes, truth)[0]) for name, loss in of_tags.items()}
    if top_k is not None:
        lists = Lists.consecutive([len(reference)])
        order, full = lists.ranks(scores_of(predictions)), lists.ranks(scores_of(reference))
        truth = Reference(full, sizes=lists.sizes, top_k=top_k)
        return {check.name: float(check.loss.values(order, truth)[0]) for check in checks}
    (prediction,), (expected,) = predictions, reference
    losses = {}
    for check in checks:
        values = probabilities if check.loss.compares == "scores" else outcome
        full = values(expected, expected)
        problem = MULTI_LABEL if full.ndim > 1 else REGRESSION
        truth = Reference(full, problem=problem, tolerance=check.tolerance)
        counts = check.loss.among is None or check.loss.among(truth)[0]
        if counts and (not check.group or check.group in groups_of(prediction, expected)):
            losses[check.name] = float(check.loss.values(values(prediction, expected), truth)[0])
    return losses


def groups_of(prediction: Prediction, full: Prediction) -> set[str]:
    """The exit and the classes of an example, as certificates name them."""
    names, decided = tuple(full.probabilities), full.label if full.decision is None else full.decision
    if isinstance(decided, bool):
        label = names[0] if decided else f"not {names[0]}"
        classes = {label}
    elif isinstance(decided, tuple):
        classes = {*decided} or {"no label"}
    else:
        classes = {str(decided)}
    return {f"layer {prediction.layer}", *classes, *(str(names.index(name)) for name in classes & {*names})}


def probabilities(prediction: Prediction, full: Prediction) -> Array:
    """(1, labels), or (1,) the number of a regression."""
    return np.array([[*prediction.probabilities.values()] if full.probabilities else prediction.score])


def outcome(prediction: Prediction, full: Prediction) -> Array:
    """(1,) the number of a regression, or (1, labels) whether each label was predicted or decided to be there."""
    decided = prediction.label if prediction.decision is None else prediction.decision
    if isinstance(full.decision, bool):
        return np.array([[decided is True]])
    if not full.probabilities:
        return np.array([prediction.score])
    labels = decided if isinstance(decided, tuple) else (decided,)
    return np.array([[name in labels for name in full.probabilities]])


def scores_of(predictions: Sequence[Prediction]) -> Array:
    """(documents,) by which they are ranked."""
    return relevance(np.array([prediction.logits for prediction in predictions]))
