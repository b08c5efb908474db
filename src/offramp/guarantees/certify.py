"""certify: may one model replace another? A bound on what changes, tested on predictions of both."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offramp.errors import BadData, BadOption
from offramp.guarantees.bounds import BOUNDS, Bound
from offramp.guarantees.certificate import Certificate, ProvenBound
from offramp.guarantees.comparison import (
    Compared,
    Comparison,
    Difference,
    GroupDifferences,
    Key,
    Predicted,
    by_class,
    common_labels,
    largest,
)
from offramp.guarantees.guarantee import BY_CLASS, are_fractions
from offramp.guarantees.losses import LOSSES, RISKS, Loss
from offramp.guarantees.operating_point import OperatingPoint
from offramp.guarantees.sequential import HOPELESS, PROVEN, REFUTED, SequentialTest, fewest_examples
from offramp.problems import REGRESSION, Array, Problem
from offramp.row_hashes import hash_rows
from offramp.wording import count, did_you_mean

UNDECIDED = "undecided"
ROWS, DISTINCT = "rows", "distinct texts"
CHUNK = 64
"""Rows that are examined together with `stop_early`, at first; later an eighth of those seen."""


@dataclass(frozen=True)
class Evidence:
    """What the rows of one sample say about one claim."""

    sample: str
    """"rows", or "distinct texts"."""
    examples: int
    observed: float
    """The mean loss: for losses of 0 or 1, the share of examples."""
    interval: tuple[float, float]
    """Contains the true risk with probability 1 - delta at least."""
    provable: float
    """The smallest bound that these rows prove."""
    verdict: str
    """"proven"; "refuted": the true risk is above the bound; "hopeless": given up early; "undecided"."""
    more_rows: int | None
    """About how many more rows like these a verdict needs; None if more than a billion."""


@dataclass(frozen=True)
class Claim:
    """One bound: what was claimed, and what came of it."""

    risk: str
    epsilon: float
    claim: str
    """In words."""
    verdict: str
    evidence: tuple[Evidence, ...]
    """On all rows, and on distinct texts if some are repeated: a claim is proven if both prove it."""
    certificate: Certificate | None
    """If it is proven."""
    group: str = ""
    """The class or category that it is about; empty: all rows."""

    @property
    def provable(self) -> float:
        """The smallest bound that could have been proven."""
        return max(sample.provable for sample in self.evidence)

    @property
    def more_rows(self) -> int | None:
        """About how many more rows like these a verdict needs; None if more than a billion."""
        needed = [sample.more_rows for sample in self.evidence]
        return None if None in needed else max(number for number in needed if number is not None)


@dataclass(frozen=True)
class Certification:
    """The verdict on all claims together, and where the two sides differ."""

    old: str
    new: str
    data: str
    delta: float
    decision: str
    """The operating point; empty for the most likely class."""
    rows: int
    examined: int
    """Fewer than `rows` if it stopped early."""
    repeated: int | None
    """Rows whose text is also that of an earlier row; None if the texts are unknown."""
    finite: bool
    """Whether the claims are about these rows alone."""
    claims: tuple[Claim, ...]
    by_class: tuple[GroupDifferences, ...]
    differences: tuple[Difference, ...]
    """The largest first."""

    @property
    def proven(self) -> bool:
        return all(claim.verdict == PROVEN for claim in self.claims)

    @property
    def verdict(self) -> str:
        """The worst verdict of all claims."""
        return worst(claim.verdict for claim in self.claims)

    def to_json(self) -> dict[str, Any]:
        claims = [
            asdict(claim)
            | {
                "provable": claim.provable,
                "more_rows": claim.more_rows,
                "certificate": claim.certificate and claim.certificate.to_json(),
            }
            for claim in self.claims
        ]
        return {"proven": self.proven, "verdict": self.verdict} | asdict(self) | {"claims": claims}


def certify(
    old: Any,
    new: Any,
    guarantee: float | Mapping[str, float] = 0.02,
    *,
    risk: str = "changed",
    delta: float = 0.05,
    decide: str | OperatingPoint = "",
    label_names: Sequence[str] = (),
    labels: Any = None,
    tolerance: float | None = None,
    texts: Sequence[Any] | None = None,
    by: str = "",
    categories: Sequence[Any] | None = None,
    stop_early: bool = False,
    finite: bool = False,
    seed: int = 0,
    names: tuple[str, str] = ("old", "new"),
    data: str = "",
) -> Certification:
    """Test whether `new` may replace `old`: whether the risk of doing so is at most the guarantee.

    The rows must be independent draws from the data that the claim is about, none of which either model was
    trained or tuned on.

    Args:
        old: for each row a label (a string or an integer), a number, or a row of scores; or `Predicted`. A row of
            integers, 0 or 1, holds the decisions about several labels.
        new: the same, for the same rows.
        guarantee: the bound; or one for each of several risks, which are proven together.
        risk: what is bounded, if the guarantee is a number. Of predictions: "changed". Of decisions that are yes or
            no: "missed" and "false_alarm", as shares of the examples that `old` says yes or no to, or with
            "_of_all" as shares of all. Of scores: "score", one moves by more than the tolerance. With labels:
            "accuracy", a correct prediction is lost; "accuracy_drop", those lost minus those gained.
        delta: the probability that a verdict is wrong.
        decide: the operating point, such as "spam>=0.3"; "spam" alone is yes where it is the predicted label. By
            default the decision is the label with the highest score.
        label_names: of the columns of scores; of labels, all there are, if one side may lack some.
        labels: the correct ones, for the risks that need them.
        tolerance: for numbers and for the risk "score": differences up to this do not count.
        texts: of the rows. If some are repeated, the claim must hold on all rows and on distinct texts.
        by: the groups within each of which the guarantee is to hold: "class", those that `old` predicts, or for
            risks with labels those of the labels; or what the categories are called, such as "language".
        categories: the category of each row.
        stop_early: examine the rows in random order until there is a verdict.
        finite: with `stop_early`, the claim is about these rows alone and not about others like them.
        seed: of the random order.
        names: what the two sides are called.
        data: what the rows are called.
    """
    bounds = guarantee if isinstance(guarantee, Mapping) else {risk: guarantee}
    old, new = (side if isinstance(side, Predicted) else np.asarray(side) for side in (old, new))
    check_options(bounds, delta, tolerance, labels is not None, stop_early, finite)
    if finite and by:
        raise BadOption(f"by={by!r} makes claims about some of the rows, so finite=True does not apply")
    if (categories is None) != (by in ("", BY_CLASS)):
        raise BadOption(f"by={by!r}: pass 'class', or the name of the categories with categories=...")
    check_lengths({names[0]: old, names[1]: new, "labels": labels, "texts": texts, "categories": categories})
    check_present({names[0]: old, names[1]: new, "labels": labels})
    comparison = Comparison(
        old,
        new,
        [*bounds],
        names,
        OperatingPoint.parse(decide) if isinstance(decide, str) else decide,
        tuple(label_names) or common_labels(old, new, names),
        None if labels is None else np.asarray(labels),
        tolerance,
        by,
        None if categories is None else np.array([*map(str, categories)]),
    )
    samples, repeated = {ROWS: np.arange(len(old))}, None
    if texts is not None:
        distinct = first_rows(hash_rows(texts))
        repeated = len(old) - len(distinct)
        if repeated and not finite:
            samples[DISTINCT] = distinct
    by_group = {(risk, group): bound for risk, bound in bounds.items() for group in comparison.group_names}
    trial = Trial(comparison, by_group, delta, samples, len(old) if finite else None)
    if stop_early:
        evidence, compared = trial.examine_until_decided(seed)
    else:
        evidence, compared = trial.examine_all()
    source = data or f"{names[0]} and {names[1]}"
    claims = [
        trial.claim(key, parts, compared.problem, source, stop_early) for key, parts in evidence.items()
    ]
    shown = comparison.decision_names(compared.problem)
    return Certification(
        *names,
        data,
        delta,
        str(comparison.point),
        len(old),
        len(compared.rows),
        repeated,
        finite,
        tuple(claims),
        by_class(compared, shown),
        largest(compared, shown, tolerance, texts),
    )


def check_options(
    bounds: Mapping[str, float],
    delta: float,
    tolerance: float | None,
    has_labels: bool,
    stop_early: bool,
    finite: bool,
) -> None:
    if not 0 < delta < 1:
        raise BadOption(f"delta={delta}: expected a probability between 0 and 1")
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise BadOption(f"tolerance={tolerance}: expected a distance of 0 or more")
    if finite and not stop_early:
        raise BadOption(
            "finite=True needs stop_early=True; without it, the risk on these rows is simply known"
        )
    if not bounds:
        raise BadOption("guarantee={}: expected a bound, such as 0.02")
    for risk, bound in bounds.items():
        if risk not in RISKS:
            raise BadOption(f"unknown risk {did_you_mean(risk, RISKS)}")
        if not are_fractions(bound):
            raise BadOption(f"guarantee={bound}: expected a fraction between 0 and 1, such as 0.02")
        if LOSSES[risk].needs_labels and not has_labels:
            raise BadOption(f"risk={risk!r} needs the correct labels; pass labels=...")
        if LOSSES[risk].compares == "scores" and tolerance is None:
            raise BadOption(f"risk={risk!r} needs tolerance=..., by which a score may move")
        if finite and LOSSES[risk].among is not None:
            raise BadOption(f"risk={risk!r} is a share of some rows, so finite=True does not apply")


def check_lengths(columns: Mapping[str, Any]) -> None:
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    (first, rows), *others = lengths.items()
    for name, length in others:
        if length != rows:
            raise BadData(
                f"{first} has {count(rows, 'row')} and {name} has {length}; they must be the same rows"
            )


def check_present(columns: Mapping[str, Any]) -> None:
    """A label that is missing is None, or NaN among objects, as pandas writes it."""
    for name, column in columns.items():
        if column is None or isinstance(column, Predicted):
            continue
        values = np.asarray(column)
        if values.dtype == object and values.ndim == 1:
            missing = [row for row, value in enumerate(values.tolist()) if value is None or value != value]
            if missing:
                raise BadData(f"{name}, row {missing[0] + 1}: no label")


def first_rows(keys: Array) -> Array:
    """The first row of each distinct key, in order."""
    return np.sort(np.unique(keys, return_index=True)[1])


@dataclass(frozen=True)
class Trial:
    """The claims, and the samples of rows that test them."""

    comparison: Comparison
    bounds: Mapping[Key, float]
    delta: float
    samples: Mapping[str, Array]
    population: int | None

    def examine_all(self) -> tuple[dict[Key, list[Evidence]], Compared]:
        self.check_rows({key: self.fewest(key, LOSSES[key[0]]) for key in self.bounds})
        compared = self.comparison.compare(self.samples[ROWS])
        losses = {key: self.comparison.loss(key[0], compared.problem) for key in self.bounds}
        self.check_enough(
            (
                key,
                int(np.isfinite(compared.losses[key][rows]).sum()),
                self.unit(key, sample),
                self.fewest(key, loss),
            )
            for key, loss in losses.items()
            for sample, rows in self.samples.items()
        )
        evidence = {
            key: [
                self.weigh(key, BOUNDS[loss.bound], compared.losses[key][rows], sample)
                for sample, rows in self.samples.items()
            ]
            for key, loss in losses.items()
        }
        return evidence, compared

    def fewest(self, key: Key, loss: Loss) -> int | None:
        """How many examples without any loss are proof enough."""
        return BOUNDS[loss.bound].examples_needed([0.0], self.bounds[key], self.delta)

    def weigh(self, key: Key, bound: Bound, losses: Array, sample: str) -> Evidence:
        losses, epsilon = losses[np.isfinite(losses)], self.bounds[key]
        verdict = UNDECIDED
        more: int | None = 0
        if bound.p_value(losses, epsilon) <= self.delta:
            verdict = PROVEN
        elif bound.refuting_p_value(losses, epsilon) <= self.delta:
            verdict = REFUTED
        else:
            needed_for = bound.examples_to_refute if losses.mean() > epsilon else bound.examples_needed
            needed = needed_for(losses, epsilon, self.delta)
            more = self.more_rows(needed, len(losses), len(self.samples[sample]), sample)
        return Evidence(
            sample,
            len(losses),
            float(losses.mean()),
            (bound.lower(losses, self.delta / 2), bound.upper(losses, self.delta / 2)),
            bound.upper(losses, self.delta),
            verdict,
            more,
        )

    def more_rows(self, needed: int | None, counted: int, examined: int, sample: str) -> int | None:
        """About how many more rows like these a verdict needs that takes so many which count."""
        if needed is None:
            return None
        # a claim may be about few of the rows, and a row may repeat the text of another
        rows_for_one = examined / counted * len(self.samples[ROWS]) / len(self.samples[sample])
        return max(1, math.ceil((needed - counted) * rows_for_one))

    def check_rows(self, needed: Mapping[Key, int | None]) -> None:
        """Too few rows for a claim are an error before anything is predicted, after which some may not count."""
        categories = self.comparison.categories
        self.check_enough(
            (
                key,
                len(rows) if categories is None else int((categories[rows] == key[1]).sum()),
                sample if categories is None else self.in_group(key, sample),
                number,
            )
            for key, number in needed.items()
            for sample, rows in self.samples.items()
        )

    def check_enough(self, tests: Iterable[tuple[Key, int, str, int | None]]) -> None:
        """So few rows that they could not prove a claim even without a difference are an error; `tests` have how many
        there are, of what, and how many it takes."""
        lacking = [
            f"{examples} {unit} cannot prove {key[0]} of at most {self.bounds[key]:g} with confidence "
            f"{1 - self.delta:g}: even without a difference it takes {needed or 'more than a billion'}"
            for key, examples, unit, needed in tests
            if needed is None or examples < needed
        ]
        if lacking:
            raise BadData("; ".join(lacking))

    def unit(self, key: Key, sample: str) -> str:
        """What is counted, in words."""
        unit = LOSSES[key[0]].examples.format(reference=self.comparison.names[0])
        return self.in_group(key, sample if unit == "examples" else f"{unit} ({sample})")

    def in_group(self, key: Key, unit: str) -> str:
        return f"{unit} of the {self.comparison.by} {key[1]!r}" if key[1] else unit

    def examine_until_decided(self, seed: int) -> tuple[dict[Key, list[Evidence]], Compared]:
        """Each sample in a random order of its own, until every claim is decided or one cannot be proven."""
        self.comparison.check()
        if self.population is None:
            self.check_rows(
                {
                    key: fewest_examples(epsilon, self.delta, lowest_loss(key))
                    for key, epsilon in self.bounds.items()
                }
            )
        rng = np.random.default_rng(seed)
        orders = {name: rng.permutation(rows) for name, rows in self.samples.items()}
        tests = {
            (key, name): SequentialTest(epsilon, self.delta, lowest_loss(key), self.population)
            for key, epsilon in self.bounds.items()
            for name in orders
        }
        seen = dict.fromkeys(orders, 0)
        while open_samples := [
            name
            for name, order in orders.items()
            if seen[name] < len(order) and any(tests[key, name].verdict is None for key in self.bounds)
        ]:
            for name in open_samples:
                part = orders[name][seen[name] :][: max(CHUNK, seen[name] // 8)]
                seen[name] += len(part)
                for key, losses in self.comparison.compare(part).losses.items():
                    test = tests[key, name]
                    test.add(losses[np.isfinite(losses)])
                    test.give_up((len(orders[name]) - seen[name]) * len(test.losses) / seen[name])
            if any(test.verdict in (REFUTED, HOPELESS) for test in tests.values()):
                break
        examined = np.unique(np.concatenate([order[: seen[name]] for name, order in orders.items()]))
        evidence = {
            key: [self.weigh_early(key, name, tests[key, name], seen[name]) for name in orders]
            for key in self.bounds
        }
        return evidence, self.comparison.compare(examined)

    def weigh_early(self, key: Key, sample: str, test: SequentialTest, examined: int) -> Evidence:
        """The rows up to the verdict; the bounds hold whenever it came."""
        verdict = test.verdict or UNDECIDED
        if not len(test.losses):
            raise BadData(f"there are no {self.unit(key, sample)}, so nothing can be proven about them")
        return Evidence(
            sample,
            len(test.losses),
            float(test.losses.mean()),
            (test.lower(self.delta / 2), test.upper(self.delta / 2)),
            test.upper(self.delta),
            verdict,
            0
            if verdict in (PROVEN, REFUTED)
            else self.more_rows(test.examples_needed(), len(test.losses), examined, sample),
        )

    def claim(
        self, key: Key, evidence: Sequence[Evidence], problem: Problem, data: str, early: bool
    ) -> Claim:
        risk, group = key
        comparison, loss = self.comparison, self.comparison.loss(risk, problem)
        scores = loss.compares == "scores"
        bound = ProvenBound(
            risk=next(name for name, known in LOSSES.items() if known is loss),
            epsilon=self.bounds[key],
            group=group,
            examples=evidence[0].examples,
            observed_risk=evidence[0].observed,
            bound="sequential betting" if early else loss.bound,
            tolerance=comparison.tolerance if scores or problem == REGRESSION else None,
            unseen=evidence[1].examples if len(evidence) > 1 else None,
            unseen_risk=evidence[1].observed if len(evidence) > 1 else None,
        )
        proof = Certificate(
            (bound,),
            self.delta,
            evidence[0].examples,
            by=comparison.by,
            unseen=bound.unseen,
            reference=comparison.names[0],
            data=data,
            decision="" if scores else str(comparison.point),
            population=self.population,
        )
        verdict = worst(sample.verdict for sample in evidence)
        certificate = proof if verdict == PROVEN else None
        return Claim(risk, self.bounds[key], proof.claim, verdict, tuple(evidence), certificate, group)


def lowest_loss(key: Key) -> float:
    return BOUNDS[LOSSES[key[0]].bound].lowest


def worst(verdicts: Iterable[str]) -> str:
    return min(verdicts, key=(REFUTED, HOPELESS, UNDECIDED, PROVEN).index)
