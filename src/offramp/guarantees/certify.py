"""certify: may one model replace another? A bound on what changes, tested on predictions of both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offramp.errors import BadData, BadOption
from offramp.guarantees.bounds import BOUNDS, Bound
from offramp.guarantees.certificate import Certificate, ProvenBound, are_fractions
from offramp.guarantees.comparison import Compared, Comparison, Predicted, common_labels
from offramp.guarantees.differences import Difference, GroupDifferences, by_class, largest
from offramp.guarantees.losses import LOSSES, RISKS
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

    @property
    def provable(self) -> float:
        """The smallest bound that could have been proven."""
        return max(each.provable for each in self.evidence)

    @property
    def more_rows(self) -> int | None:
        """About how many more rows like these a verdict needs; None if more than a billion."""
        needed = [each.more_rows for each in self.evidence]
        return None if None in needed else max(each for each in needed if each is not None)


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
        stop_early: examine the rows in random order until there is a verdict.
        finite: with `stop_early`, the claim is about these rows alone and not about others like them.
        seed: of the random order.
        names: what the two sides are called.
        data: what the rows are called.
    """
    bounds = guarantee if isinstance(guarantee, Mapping) else {risk: guarantee}
    old, new = (side if isinstance(side, Predicted) else np.asarray(side) for side in (old, new))
    check_options(bounds, delta, tolerance, labels is not None, stop_early, finite)
    check_lengths({names[0]: old, names[1]: new, "labels": labels, "texts": texts})
    comparison = Comparison(
        old,
        new,
        [*bounds],
        names,
        OperatingPoint.parse(decide) if isinstance(decide, str) else decide,
        tuple(label_names) or common_labels(old, new, names),
        None if labels is None else np.asarray(labels),
        tolerance,
    )
    samples, repeated = {ROWS: np.arange(len(old))}, None
    if texts is not None:
        distinct = first_rows(hash_rows(texts))
        repeated = len(old) - len(distinct)
        if repeated and not finite:
            samples[DISTINCT] = distinct
    trial = Trial(comparison, bounds, delta, samples, len(old) if finite else None)
    if stop_early:
        evidence, compared = trial.examine_until_decided(seed)
    else:
        evidence, compared = trial.examine_all()
    claims = trial.conclude(evidence, compared.problem, data or f"{names[0]} and {names[1]}", stop_early)
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
        claims,
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


def first_rows(keys: Array) -> Array:
    """The first row of each distinct key, in order."""
    return np.sort(np.unique(keys, return_index=True)[1])


@dataclass(frozen=True)
class Trial:
    """The claims, and the samples of rows that test them."""

    comparison: Comparison
    bounds: Mapping[str, float]
    delta: float
    samples: Mapping[str, Array]
    population: int | None

    def examine_all(self) -> tuple[dict[str, list[Evidence]], Compared]:
        compared = self.comparison.compare(self.samples[ROWS])
        evidence = {
            risk: [self.weigh(risk, compared, name, rows) for name, rows in self.samples.items()]
            for risk in self.bounds
        }
        return evidence, compared

    def weigh(self, risk: str, compared: Compared, sample: str, rows: Array) -> Evidence:
        losses, epsilon = compared.losses[risk][rows], self.bounds[risk]
        losses = losses[np.isfinite(losses)]
        bound = BOUNDS[self.comparison.loss(risk, compared.problem).bound]
        self.check_enough(risk, sample, len(losses), bound.examples_needed([0.0], epsilon, self.delta))
        verdict = UNDECIDED
        if bound.p_value(losses, epsilon) <= self.delta:
            verdict = PROVEN
        elif bound.refuting_p_value(losses, epsilon) <= self.delta:
            verdict = REFUTED
        return Evidence(
            sample,
            len(losses),
            float(losses.mean()),
            (bound.lower(losses, self.delta / 2), bound.upper(losses, self.delta / 2)),
            bound.upper(losses, self.delta),
            verdict,
            more_rows(bound, losses, epsilon, self.delta) if verdict == UNDECIDED else 0,
        )

    def check_enough(self, risk: str, sample: str, examples: int, needed: int | None) -> None:
        """So few rows that they could not prove the claim even without a difference are an error."""
        if needed is None or examples < needed:
            unit = LOSSES[risk].examples.format(reference=self.comparison.names[0])
            unit = sample if unit == "examples" else f"{unit} ({sample})"
            raise BadData(
                f"{examples} {unit} cannot prove {risk} of at most {self.bounds[risk]:g} with confidence "
                f"{1 - self.delta:g}: even without a difference it takes {needed or 'more than a billion'}"
            )

    def examine_until_decided(self, seed: int) -> tuple[dict[str, list[Evidence]], Compared]:
        """Each sample in a random order of its own, until every claim is decided or one cannot be proven."""
        rng = np.random.default_rng(seed)
        orders = {name: rng.permutation(rows) for name, rows in self.samples.items()}
        tests = {(risk, name): self.sequential_test(risk, name) for risk in self.bounds for name in orders}
        seen = dict.fromkeys(orders, 0)
        while open_samples := [
            name
            for name, order in orders.items()
            if seen[name] < len(order) and any(tests[risk, name].verdict is None for risk in self.bounds)
        ]:
            for name in open_samples:
                part = orders[name][seen[name] :][: max(CHUNK, seen[name] // 8)]
                seen[name] += len(part)
                for risk, losses in self.comparison.compare(part).losses.items():
                    test = tests[risk, name]
                    test.add(losses[np.isfinite(losses)])
                    test.give_up((len(orders[name]) - seen[name]) * len(test.losses) / seen[name])
            if any(test.verdict in (REFUTED, HOPELESS) for test in tests.values()):
                break
        examined = np.unique(np.concatenate([order[: seen[name]] for name, order in orders.items()]))
        evidence = {
            risk: [self.weigh_early(risk, name, tests[risk, name]) for name in orders] for risk in self.bounds
        }
        return evidence, self.comparison.compare(examined)

    def sequential_test(self, risk: str, sample: str) -> SequentialTest:
        lowest, epsilon = BOUNDS[LOSSES[risk].bound].lowest, self.bounds[risk]
        if self.population is None:
            needed = fewest_examples(epsilon, self.delta, lowest)
            self.check_enough(risk, sample, len(self.samples[sample]), needed)
        return SequentialTest(epsilon, self.delta, lowest, self.population)

    def weigh_early(self, risk: str, sample: str, test: SequentialTest) -> Evidence:
        """The rows up to the verdict; the bounds hold whenever it came."""
        verdict = test.verdict or UNDECIDED
        if not len(test.losses):
            unit = LOSSES[risk].examples.format(reference=self.comparison.names[0])
            raise BadData(f"there are no {unit}, so nothing can be proven about them")
        bound = BOUNDS[LOSSES[risk].bound]
        return Evidence(
            sample,
            len(test.losses),
            float(test.losses.mean()),
            (test.lower(self.delta / 2), test.upper(self.delta / 2)),
            test.upper(self.delta),
            verdict,
            0
            if verdict in (PROVEN, REFUTED)
            else more_rows(bound, test.losses, self.bounds[risk], self.delta),
        )

    def conclude(
        self, evidence: Mapping[str, Sequence[Evidence]], problem: Problem, data: str, early: bool
    ) -> tuple[Claim, ...]:
        return tuple(self.claim(risk, parts, problem, data, early) for risk, parts in evidence.items())

    def claim(
        self, risk: str, evidence: Sequence[Evidence], problem: Problem, data: str, early: bool
    ) -> Claim:
        comparison, loss = self.comparison, self.comparison.loss(risk, problem)
        scores = loss.compares == "scores"
        bound = ProvenBound(
            risk=next(name for name, each in LOSSES.items() if each is loss),
            epsilon=self.bounds[risk],
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
            unseen=bound.unseen,
            reference=comparison.names[0],
            data=data,
            decision="" if scores else str(comparison.point),
            population=self.population,
        )
        verdict = worst(each.verdict for each in evidence)
        certificate = proof if verdict == PROVEN else None
        return Claim(risk, self.bounds[risk], proof.claim, verdict, tuple(evidence), certificate)


def more_rows(bound: Bound, losses: Array, epsilon: float, delta: float) -> int | None:
    """About how many more rows like these a verdict needs."""
    needed_for = bound.examples_to_refute if losses.mean() > epsilon else bound.examples_needed
    needed = needed_for(losses, epsilon, delta)
    return None if needed is None else max(1, needed - len(losses))


def worst(verdicts: Iterable[str]) -> str:
    return min(verdicts, key=(REFUTED, HOPELESS, UNDECIDED, PROVEN).index)
