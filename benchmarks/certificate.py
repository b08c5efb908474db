"""Do certificates hold, and how early do they let texts exit?

    python benchmarks/certificate.py repeats [TRACE]           # how often a certificate is false, where texts repeat
    python benchmarks/certificate.py power [TRACE]             # the mean layer, before and after what was changed
    python benchmarks/certificate.py decisions [TRACE]         # decisions at thresholds, accuracy
    python benchmarks/certificate.py groups [TRACE]            # bounds within every class and at every exit
    python benchmarks/certificate.py missed [TRACE]            # a rule that learns when no yes is missed
    python benchmarks/certificate.py training MODEL GLUE       # repeats that the exits were trained on too

A trace is the population: logs are drawn from it, a policy is calibrated on each, and its true risk is that on the
whole trace. Without one the population is synthetic, see `make_population`. `training` draws logs of SST-2 phrases,
trains exits for a fine-tuned classifier on each (on stored features, as `offramp retrofit` does), and judges
certificates on phrases that are in no log. Prints Markdown.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binomtest
from shared import log, markdown, read_sst2

from offramp.errors import NoSafeThreshold
from offramp.measuring import Guarantee, calibrate
from offramp.measuring.losses import losses_on, mean_losses
from offramp.policy import Policy
from offramp.retrofits.text_split import split_texts
from offramp.rules import RULES
from offramp.rules.agreement import Agreement
from offramp.rules.base import Rule, fit_exit
from offramp.trace import Trace

SAME_AS_FULL_DEPTH = 0.81, 0.83, 0.85, 0.88, 0.90, 0.944, 0.975, 0.991, 0.994, 0.997, 0.998, 1.0
"""The share of texts on which each exit predicts what the last one does, as on SST-2 in docs/results.md."""
FIVE_RULES = ["agreement", "entropy", "confidence", "margin", "layer"]
THREE_RULES = ["agreement", "entropy", "layer"]
PRECISIONS = 2
"""A retrofit calibrates fp32 and int8, which share delta."""

Array = np.ndarray
Rng = np.random.Generator


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["repeats", "power", "decisions", "groups", "missed", "training"])
    parser.add_argument("trace", type=Path, nargs="?", help="or MODEL, a fine-tuned classifier of SST-2")
    parser.add_argument("glue", type=Path, nargs="?", help="folder of the GLUE tasks")
    parser.add_argument("--rows", type=int, nargs="+", default=[3000], help="rows of a log")
    parser.add_argument("--epsilon", type=float, default=0.02)
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    target = Guarantee(options.epsilon, options.delta)
    if options.study == "training":
        print(study_training(options.trace, options.glue, target, options.rows[0], options.draws))
        return
    population = make_population() if options.trace is None else one_row_per_text(Trace.load(options.trace))
    studies = {
        "repeats": study_repeats,
        "power": study_power,
        "decisions": study_decisions,
        "groups": study_groups,
        "missed": study_missed,
    }
    print(studies[options.study](population, target, options.rows, options.draws))


def make_population(texts: int = 12_000, seed: int = 0) -> Trace:
    """Two classes, 12 exits, each text once.

    The lead of one class over the other at the last exit has a gamma distribution and a random sign. At the exits
    before it a random walk is added, which ends there, so that neighbouring exits err on the same texts. At each
    exit the noise is as large as needed for the share of `SAME_AS_FULL_DEPTH`.
    """
    rng = np.random.default_rng(seed)
    lead = rng.choice([-1, 1], texts) * rng.gamma(2, 2, texts)
    walk = rng.normal(size=(texts, len(SAME_AS_FULL_DEPTH))).cumsum(1)[:, ::-1]
    leads = [lead + noise_for(share, lead, walk[:, exit]) for exit, share in enumerate(SAME_AS_FULL_DEPTH)]
    scaled = np.stack([each * (lead.std() / each.std()) for each in leads], 1)
    return Trace(
        np.stack([-scaled / 2, scaled / 2], -1),
        tuple(range(1, len(SAME_AS_FULL_DEPTH) + 1)),
        labels=(rng.random(texts) < 1 / (1 + np.exp(-lead))).astype(int),
        lengths=np.ones(texts),
        ids=np.arange(texts),
        texts=np.arange(texts),
    )


def noise_for(share: float, lead: Array, walk: Array) -> Array:
    """The walk, scaled so that the sign is kept for a share of the texts."""
    if share == 1:
        return np.zeros_like(lead)
    scale: float = brentq(lambda scale: np.mean((lead + scale * walk) * lead > 0) - share, 1e-3, 100)
    return scale * walk


def one_row_per_text(trace: Trace) -> Trace:
    trace = trace.decided() if trace.texts is None else trace[trace.unseen()].decided()
    return replace(trace, texts=np.arange(len(trace)), ids=np.arange(len(trace)), trained_on=None)


def bound_of(target: Guarantee) -> float:
    assert isinstance(target.epsilon, float)
    return target.epsilon


def true_risk(population: Trace, policy: Policy) -> tuple[Array, float]:
    """Which predictions of the population change, and the mean layer."""
    decision = policy.decide_trace(population)
    return ~population.agrees(decision.logits), float(np.asarray(population.layers)[decision.exits].mean())


# Repeats: logs in which texts come again


@dataclass(frozen=True)
class Log:
    """The rows of a log, as texts of the population, and how often these are to come."""

    texts: Array
    weights: Array | None = None
    """Weights of the population; None if all texts are new and equally likely."""


def distinct(rng: Rng, texts: int, rows: int) -> Log:
    return Log(rng.choice(texts, rows, replace=False))


def repeated(rng: Rng, texts: int, rows: int, share: float, times: int) -> Log:
    """A share of the texts comes about so many times, in this log and not later."""
    number = int(rows / (1 + share * (times - 1)))
    counts = np.where(rng.random(number) < share, rng.poisson(times - 1, number) + 1, 1)
    return Log(np.repeat(rng.choice(texts, number, replace=False), counts if share < 1 else times))


def heavy_tail(rng: Rng, texts: int, rows: int) -> Log:
    """Counts follow Zipf's law, in this log and not later."""
    counts = np.minimum(rng.zipf(1.8, rows), rows // 3)
    number = int(np.searchsorted(counts.cumsum(), rows)) + 1
    return Log(np.repeat(rng.choice(texts, number, replace=False), counts[:number]))


def stable(rng: Rng, texts: int, rows: int) -> Log:
    """Texts of Zipf's popularity, which they keep."""
    weights = 1 / np.arange(1, texts + 1)
    weights /= weights.sum()
    return Log(rng.choice(texts, rows, p=weights), weights)


LOGS: dict[str, Callable[[Rng, int, int], Log]] = {
    "no repeats": distinct,
    "bursts: 5% of the texts about 10 times": partial(repeated, share=0.05, times=10),
    "every text 3 times": partial(repeated, share=1, times=3),
    "every text 10 times": partial(repeated, share=1, times=10),
    "20% of the texts about 20 times": partial(repeated, share=0.2, times=20),
    "heavy tail (Zipf 1.8)": heavy_tail,
    "stable popularity (Zipf 1)": stable,
}
VARIANTS = 8
"""Variants of each template: the same logits but for noise."""


def study_repeats(population: Trace, target: Guarantee, rows: Sequence[int], draws: int) -> str:
    """False certificates, with the test on all rows alone (before) and with that on distinct unseen texts (now)."""
    table = []
    for name, draw in LOGS.items():
        drawn = [draw(np.random.default_rng(seed), len(population), rows[0]) for seed in range(draws)]
        samples = [(population[each.texts], each.weights) for each in drawn]
        before = [(forgetting_texts(sample), weights) for sample, weights in samples]
        table.append([name, *compare(population, target, samples, before)])
        log(" | ".join(table[-1]))
    for noise in (0.0, 0.5):
        variants = [
            with_templates(population, rows[0], noise, np.random.default_rng(seed)) for seed in range(draws)
        ]
        before = [(forgetting_texts(sample), None) for sample in variants]
        grouped = [(replace(sample, group_column="template"), None) for sample in variants]
        name = f"{rows[0] // VARIANTS} templates, {VARIANTS} variants, logits ± {noise:g}"
        table.append([f"{name}; `--group`", *compare(population, target, grouped, before)])
        log(" | ".join(table[-1]))
    header = "log, unseen texts, before: false, mean layer, now: false, mean layer, `agreement` alone: false"
    return markdown(header.split(", "), table)


def forgetting_texts(sample: Trace) -> Trace:
    return replace(sample, texts=None, ids=np.arange(len(sample)))


def with_templates(population: Trace, rows: int, noise: float, rng: Rng) -> Trace:
    """Each template is a text of the population, and a group; its variants are other texts, with noise."""
    templates = np.repeat(rng.choice(len(population), rows // VARIANTS, replace=False), VARIANTS)
    sample = population[templates]
    return replace(sample, logits=sample.logits + noise * rng.normal(size=sample.logits.shape))


Sample = tuple[Trace, Array | None]


def compare(
    population: Trace, target: Guarantee, samples: Sequence[Sample], before: Sequence[Sample]
) -> list[str]:
    """With the default rules, before and now; and with one rule, which has all of delta."""
    cells = [f"{np.mean([sample.unseen().sum() for sample, _ in samples]):.0f}"]
    for some in (before, samples):
        cells += count_false(population, target, some, THREE_RULES, PRECISIONS)
    return [*cells, count_false(population, target, samples, ["agreement"])[0]]


def count_false(
    population: Trace, target: Guarantee, samples: Sequence[Sample], rules: list[str], choices: int = 1
) -> list[str]:
    """The share of the samples that give a false certificate, and the mean layer of all."""
    false, layers = 0, []
    for sample, weights in samples:
        try:
            policy = calibrate(sample, rules, target, choices=choices).policy
        except NoSafeThreshold:
            layers.append(float(population.layers[-1]))
            continue
        changed, layer = true_risk(population, policy)
        false += np.average(changed, weights=weights) > bound_of(target)
        layers.append(layer)
    return [share_of(false, len(samples)), f"{np.mean(layers):.2f}"]


def share_of(number: int, draws: int) -> str:
    """With its 95% interval."""
    found: Any = binomtest(int(number), draws).proportion_ci()
    return f"{100 * number / draws:.1f}% ({100 * found.low:.1f} to {100 * found.high:.1f})"


# Power: how many layers a certificate costs


@dataclass(frozen=True)
class Way:
    """Shares of the texts of a retrofit, and the rules to choose from."""

    rules: list[str]
    calibrate: float
    fit: float
    """0: a third of those to calibrate on."""
    equal: bool = True
    """Whether the rules have equal shares of delta."""


NOW = {name: size / 10_000 for name, size in split_texts([str(n) for n in range(10_000)]).sizes().items()}
WAYS = {
    "before: five rules, `agreement` fitted on a third of the calibration rows": Way(FIVE_RULES, 0.35, 0),
    "+ three rules, of which no two rank texts alike": Way(THREE_RULES, 0.35, 0),
    "+ `agreement` fitted on other held-out rows": Way(THREE_RULES, 0.35, 0.1),
    "+ half of the test rows certify": Way(THREE_RULES, NOW["calibration"], NOW["fit"]),
    "+ `agreement` has 80% of delta: now": Way(THREE_RULES, NOW["calibration"], NOW["fit"], equal=False),
    "the same, and all of the test rows certify": Way(THREE_RULES, 0.45, 0.1, equal=False),
    "now, with `agreement` alone": Way(["agreement"], NOW["calibration"], NOW["fit"]),
}


def study_power(population: Trace, target: Guarantee, rows: Sequence[int], draws: int) -> str:
    """The mean layer of the population for each way; `rows` are those that calibrate in the first."""
    table = []
    for name, way in WAYS.items():
        cells = []
        for number in rows:
            texts, layers, false = number / 0.35, [], 0
            for seed in range(draws):
                policy = certified(population, way, target, texts, np.random.default_rng(seed))
                changed, layer = (
                    (np.zeros(1), population.layers[-1]) if policy is None else true_risk(population, policy)
                )
                layers.append(layer)
                false += changed.mean() > bound_of(target)
            cells += [f"{np.mean(layers):.2f} ± {np.std(layers) / draws**0.5:.2f}", share_of(false, draws)]
        table.append([name, *cells])
    best = [cell for _ in rows for cell in (f"{best_layer(population, target):.2f}", "")]
    table.append(["best threshold of `agreement` if its risk were known", *best])
    columns = [each for number in rows for each in (f"mean layer, {number} rows", "false")]
    return markdown(["", *columns], table)


def certified(population: Trace, way: Way, target: Guarantee, texts: float, rng: Rng) -> Policy | None:
    rows, fit = int(way.calibrate * texts), int(way.fit * texts)
    sample = population[rng.choice(len(population), rows + fit, replace=False)]
    fit_on = sample[rows:] if fit else None
    tests = [[rule] for rule in way.rules] if way.equal else [way.rules]
    found = []
    for rules in tests:
        with suppress(NoSafeThreshold):
            choices = PRECISIONS * len(tests)
            found.append(calibrate(sample[:rows], rules, target, fit_on=fit_on, choices=choices).policy)
    return min(found, key=lambda policy: policy.certificate.conditions.mean_layer, default=None)  # type: ignore[union-attr]


def best_layer(population: Trace, target: Guarantee) -> float:
    """All of the population calibrates; with a delta of one half, the observed risk is about the bound."""
    policy = calibrate(population, ["agreement"], replace(target, delta=0.5)).policy
    return true_risk(population, policy)[1]


# Decisions: what people decide at a threshold, and with labels

THRESHOLDS = 0.1, 0.3, 0.5, 0.7, 0.9, 0.95
RISKS = ("changed", None), ("accuracy", None), ("accuracy_drop", None), ("accuracy_drop", 0.005)
"""With their bounds; None: that of all others."""
ACCURACIES = 0.6, 0.8, 0.95


def study_decisions(population: Trace, target: Guarantee, rows: Sequence[int], draws: int) -> str:
    """Decisions at a threshold, under a certificate of the most likely class and under one of these decisions; and
    the risks that need labels."""
    logs = [
        np.random.default_rng(seed).choice(len(population), rows[0], replace=False) for seed in range(draws)
    ]
    label = (population.label_names or ("0", "1"))[1]
    argmax, decisions = calibrated(population, target, logs), []
    for threshold in THRESHOLDS:
        decided = replace(population, decide=f"{label}>={threshold:g}").decided()
        cells = []
        for view, policies in ((population, argmax), (decided, calibrated(decided, target, logs))):
            taken = [policy.decide_trace(view).exits for policy in policies]
            cells += outcome(decided, taken, lambda yes, full: np.mean(yes != full))
            cells.append(outcome(decided, taken, lost_yes)[0])
        decisions.append([f"P >= {threshold:g}", *cells])
    columns = "changed, mean layer, yes that is lost".split(", ")
    header = ["decision", *columns, *(f"{each}, certified for it" for each in columns)]
    tables = [markdown(header, decisions)]
    if population.labels is not None:
        tables.append(study_labels(population, target, logs))
    return "\n\n".join(tables)


def study_groups(population: Trace, target: Guarantee, rows: Sequence[int], draws: int) -> str:
    """Bounds within groups: how often they are proven and false, what they cost, and what one bound for all hides."""
    table = []
    classes = population.reference_predictions()
    for by, name in {"": "all", "class": "every class", "exit": "every exit"}.items():
        false, layers = 0, []
        worst: dict[str, list[float]] = {"": [], "class": [], "exit": []}
        for seed in range(draws):
            log = np.random.default_rng(seed).choice(len(population), rows[0], replace=False)
            with suppress(NoSafeThreshold):
                policy = calibrate(population[log], THREE_RULES, replace(target, by=by)).policy
                decision = policy.decide_trace(population)
                changed = ~population.agrees(decision.logits)
                groups = {"": np.zeros(len(population), int), "class": classes, "exit": decision.exits}
                for each, members in groups.items():
                    worst[each].append(max(changed[members == group].mean() for group in np.unique(members)))
                false += worst[by][-1] > target.bounds_of("changed", [""])[""]
                layers.append(np.asarray(population.layers)[decision.exits].mean())
        shares = [f"{100 * np.mean(found):.2f}% (at most {100 * max(found):.2f})" for found in worst.values()]
        table.append([name, f"{len(layers)} of {draws}", str(false), f"{np.mean(layers):.2f}", *shares])
    header = [
        "bound for",
        "proven",
        "false",
        "mean layer",
        "changed",
        "in the worst class",
        "at the worst exit",
    ]
    return markdown(header, table)


def calibrated(population: Trace, target: Guarantee, logs: Sequence[Array]) -> list[Policy]:
    return [calibrate(population[log], THREE_RULES, target).policy for log in logs]


def outcome(decided: Trace, taken: Sequence[Array], risk: Callable[[Array, Array], float]) -> list[str]:
    """The mean risk of decisions at these exits and the largest, and the mean layer."""
    yes, rows = decided.logits[..., 0] > 0, np.arange(len(decided))
    risks = [100 * risk(yes[rows, exits], yes[:, -1]) for exits in taken]
    layers = np.asarray(decided.layers)[np.stack(taken)]
    return [f"{np.mean(risks):.1f}% (at most {max(risks):.1f})", f"{layers.mean():.2f}"]


def lost_yes(yes: Array, full: Array) -> float:
    return float(np.mean(~yes[full])) if full.any() else 0.0


def study_labels(population: Trace, target: Guarantee, logs: Sequence[Array]) -> str:
    """True risks; and for the risk "accuracy", the sentence of a share of all examples, and that of a share of the
    correct predictions, which certificates once printed."""
    table = []
    for risk, bound in RISKS:
        aim = replace(target, risk=risk, epsilon=bound or bound_of(target))
        policies = calibrated(population, aim, logs)
        pairs = [correct_at(population, policy) for policy in policies]
        drops = [100 * float(full.mean() - early.mean()) for early, full in pairs]
        layers = [true_risk(population, policy)[1] for policy in policies]
        changes = [100 * true_risk(population, policy)[0].mean() for policy in policies]
        cells = [f"{np.mean(values):.2f}" for values in (layers, changes, drops)]
        table.append([f"{risk}, {100 * bound_of(aim):g}%", *cells, f"{max(drops):.2f}"])
    sentences = []
    predicted = population.reference_predictions()
    for accuracy in ACCURACIES:
        wrong = np.random.default_rng(0).random(len(population)) > accuracy
        labelled = replace(population, labels=np.where(wrong, 1 - predicted, predicted))
        aim = replace(target, risk="accuracy", epsilon=0.03)
        losses = []
        for policy in calibrated(labelled, aim, logs):
            early, full = correct_at(labelled, policy)
            lost = np.mean(full & ~early)
            losses.append((lost > bound_of(aim), lost / full.mean() > bound_of(aim)))
        false, once = np.sum(losses, 0)
        sentences.append([f"{100 * accuracy:.0f}%", share_of(once, len(logs)), share_of(false, len(logs))])
    return "\n\n".join(
        [
            markdown(["certified", "mean layer", "changed, %", "accuracy lost, points", "largest"], table),
            markdown(
                ["accuracy", "3% of correct predictions: false", "3% of all examples: false"], sentences
            ),
        ]
    )


def correct_at(population: Trace, policy: Policy) -> tuple[Array, Array]:
    """(texts,) whether the prediction is correct, under the policy and at full depth."""
    early = population.decode(policy.decide_trace(population).logits)
    return early == population.labels, population.reference_predictions() == population.labels


# Missed: should the rule learn when a yes is missed, if that is what the guarantee bounds?


@dataclass(frozen=True)
class ByPrediction(Rule):
    """An estimate for those that an exit predicts as no, and another one for those that it predicts as yes."""

    no: Agreement
    yes: Agreement

    probability = True

    def start(self, examples: Any) -> Any:
        return History(self.no.start(examples), self.yes.start(examples))

    def step(self, state: Any, logits: Array) -> tuple[Any, Array]:
        (no, if_no), (yes, if_yes) = self.no.step(state.no, logits), self.yes.step(state.yes, logits)
        return History(no, yes), np.where(logits.argmax(-1) == 1, if_yes, if_no)


@dataclass(frozen=True)
class History:
    no: Any
    yes: Any

    def __getitem__(self, rows: Any) -> "History":
        return History(self.no[rows], self.yes[rows])


def fit_by_prediction(trace: Trace, kept: Array) -> ByPrediction:
    """`kept` (exits, examples) is what it learns."""
    rule, state, fits = Agreement(), None, ([], [])  # type: Any, Any, Any
    for exit in range(len(trace.layers)):
        logits = trace.problem.choices(trace.logits[:, exit])
        state, features = rule.observe(state or rule.start(logits.shape[:2]), logits)
        for answer, fit in enumerate(fits):
            rows = logits[:, 0].argmax(-1) == answer
            fit.append(fit_exit(features[rows, 0], kept[exit][rows]))
    return ByPrediction(*(Agreement(coefficients=tuple(fit)) for fit in fits))


def study_missed(population: Trace, target: Guarantee, rows: Sequence[int], draws: int) -> str:
    """What a bound on missed ones costs with three fits of the rule, and what false alarms it lets through."""
    RULES["by prediction"] = ByPrediction
    label = (population.label_names or ("0", "1"))[1]
    target, table = replace(target, risk="missed"), []
    for threshold in (0.5, 0.7, 0.9):
        decided = replace(population, decide=f"{label}>={threshold:g}").decided()
        results: dict[str, list[list[float]]] = {}
        for seed in range(draws):
            log = decided[np.random.default_rng(seed).choice(len(decided), rows[0], replace=False)]
            fit_on, sample = log[: rows[0] // 3], log[rows[0] // 3 :]
            same = np.stack([fit_on.agrees(fit_on.logits[:, exit]) for exit in range(len(fit_on.layers))])
            kept = losses_on(fit_on, fit_on.logits, ["missed"])["missed"] == 0
            both = [Agreement.fit(fit_on, kept=learned) for learned in (same, kept)]
            fits = {
                "the prediction is the same": ByPrediction(both[0], both[0]),
                "no yes is missed": ByPrediction(both[1], both[1]),
                "no yes is missed, and reads the prediction": fit_by_prediction(fit_on, kept),
            }
            for name, rule in fits.items():
                policy = calibrate(sample, Policy(rule), target).policy
                decision = policy.decide_trace(decided)
                lost = mean_losses(decided, decision.logits, ["missed", "false_alarm"])
                layer = float(np.asarray(decided.layers)[decision.exits].mean())
                results.setdefault(name, []).append([layer, *lost.values()])
        for name, found in results.items():
            layer, missed, alarms = np.mean(found, 0)
            cells = [f"{layer:.2f}", f"{100 * missed:.1f}%", f"{100 * alarms:.1f}%"]
            table.append([f"P >= {threshold:g}", name, *cells])
    header = "decision, the rule learns when, mean layer, yes that is missed, no that becomes yes"
    return markdown(header.split(", "), table)


# Training: exits that have learned from the repeats that they are calibrated on

INNER_EXITS = [3, 6, 9]
EPOCHS, RATE, BATCH = 10, 1e-3, 256
"""As in the recipe `frozen`."""
FRESH = 2000
"""Phrases that are in no log."""
REPEATED = {
    "no repeats": (0.0, 1),
    "10% of the rows are texts that come 10 times": (0.1, 10),
    "half of the rows are texts that come 10 times": (0.5, 10),
    "every text twice": (1.0, 2),
    "every text 3 times": (1.0, 3),
}


def study_training(model: Path, glue: Path, target: Guarantee, rows: int, draws: int) -> str:
    """Logs with repeats, through training, fitting and calibration."""
    features, logits = features_of(model, glue, FRESH + rows)
    table = []
    for name, (share, times) in REPEATED.items():
        found = []
        for seed in range(draws):
            texts = np.random.default_rng(seed).permutation(np.arange(FRESH, FRESH + rows))
            often = int(share * rows) // times
            log = np.concatenate(
                [np.repeat(texts[:often], times), texts[often : often + rows - often * times]]
            )
            found.append(changed_by_log(features, logits, log, target, seed))
        cells = []
        for made in zip(*found, strict=True):
            changed = [each for each in made if each is not None]
            sure = [surely_above(each, bound_of(target)) for each in changed]
            mean = f"{100 * np.mean(changed):.2f}%" if changed else "-"
            above = sum(each > bound_of(target) for each in changed)
            cells += [str(len(changed)), mean, share_of(above, draws), f"{sum(sure)}"]
        table.append([name, *cells])
    columns = ["certified", "fresh texts changed", "above the bound", "surely"]
    return markdown(["log", *(f"{each}, {when}" for when in ("before", "now") for each in columns)], table)


def surely_above(changed: float, bound: float) -> bool:
    return bool(binomtest(round(changed * FRESH), FRESH, bound, "greater").pvalue < 0.01)


def features_of(model: Path, glue: Path, texts: int) -> tuple[Any, Any]:
    """What the heads of all exits read (texts, exits, width), and the logits of the last. The phrases are distinct,
    and none of those that benchmarks/retrofit.py fine-tunes on."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, DataCollatorWithPadding

    from offramp import ExitModel
    from offramp.training.data import tokenize_texts
    from offramp.training.features import Features, collect_features, measure_scaling

    phrases = read_sst2(glue / "SST-2" / "train.tsv")["text"]
    order = np.random.default_rng(0).permutation(len(phrases))
    learned = {phrases[row] for row in order[:8000]}
    chosen = [*dict.fromkeys(phrases[row] for row in order[8000:] if phrases[row] not in learned)][:texts]
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = ExitModel.from_encoder(model, exits=INNER_EXITS)
    data = tokenize_texts(Dataset.from_dict({"text": chosen}), tokenizer, 128)
    with TemporaryDirectory() as place:
        file = Path(place) / "features.npy"
        found: Features = collect_features(network, data, DataCollatorWithPadding(tokenizer), file, 128, True)
        vectors = torch.from_numpy(found.vectors[:].astype(np.float32))
        scaled = measure_scaling(found).apply(vectors)
    with torch.no_grad():
        return scaled[:, :-1], network(features=vectors).logits


def changed_by_log(
    features: Any, logits: Any, log: Array, target: Guarantee, seed: int
) -> tuple[float | None, float | None]:
    """The share of fresh texts whose prediction a policy changes that was certified on this log: on its rows alone,
    and also on its distinct unseen texts."""
    split = split_texts([str(text) for text in log])
    parts = {name: np.array([int(text) for text in part.texts]) for name, part in vars(split).items()}
    traces = {
        name: Trace(
            logits_of_heads,
            (*INNER_EXITS, 12),
            labels=None,
            lengths=np.ones(len(texts)),
            ids=np.arange(len(texts)),
            texts=texts,
        )
        for (name, texts), logits_of_heads in zip(
            (parts | {"fresh": np.arange(FRESH)}).items(),
            run_heads(features, logits, [*parts.values(), np.arange(FRESH)], seed),
            strict=True,
        )
    }
    calibration = replace(
        traces["calibration"], trained_on=np.isin(split.calibration.groups, split.before("calibration"))
    )
    changed: list[float | None] = []
    for sample, fit in (
        (forgetting_texts(traces["calibration"]), forgetting_texts(traces["fit"])),
        (calibration, traces["fit"]),
    ):
        try:
            policy = calibrate(
                sample, THREE_RULES, target, fit_on=fit, choices=PRECISIONS, allow_training_rows=True
            ).policy
        except NoSafeThreshold:
            changed.append(None)
            continue
        changed.append(float(true_risk(traces["fresh"], policy)[0].mean()))
    return changed[0], changed[1]


def run_heads(features: Any, logits: Any, parts: Sequence[Array], seed: int) -> list[Array]:
    """The logits of every exit on each part, once heads have learned from the first part with the last exit as
    teacher: each a dense layer with tanh and a classifier, as `offramp retrofit` trains them."""
    import torch
    from torch import nn

    from offramp.training.losses import teacher_loss

    torch.manual_seed(seed)
    width, classes = features.shape[-1], logits.shape[-1]
    heads = nn.ModuleList(
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, classes))
        for _ in INNER_EXITS
    )

    def run(rows: Any) -> Any:
        inner = [head(features[rows, exit]) for exit, head in enumerate(heads)]
        return torch.stack([*inner, logits[rows]], 1)

    learn = torch.from_numpy(parts[0])
    optimizer = torch.optim.AdamW(heads.parameters(), RATE)
    for _ in range(EPOCHS):
        for places in torch.randperm(len(learn)).split(BATCH):
            (loss,) = teacher_loss(run(learn[places]))
            optimizer.zero_grad()
            (loss / len(places)).backward()
            optimizer.step()
    heads.train(False)
    with torch.no_grad():
        return [run(torch.from_numpy(part)).numpy() for part in parts]


if __name__ == "__main__":
    main()
