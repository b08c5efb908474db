"""One trace, measured: the numbers of a section of the report, and its charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offramp.measuring import Curve, Point, Sweep, sweep
from offramp.measuring.curve import MeanCurve, parse_rule
from offramp.measuring.exit_table import apply_rule
from offramp.measuring.scores import agreement_of_exits
from offramp.measuring.sweep import measure_point
from offramp.policy import Policy
from offramp.policy.text import rule_in_text
from offramp.reports.chart import (
    CORRECT,
    FRONT,
    FULL_DEPTH,
    SHIPPED,
    WRONG,
    Band,
    Bars,
    Chart,
    Line,
    Style,
    padded_range,
    style,
)
from offramp.trace import Trace

BINS = 30
SHIPPED_NAME = "shipped policy"


@dataclass(frozen=True)
class Readiness:
    """Histograms of what a rule measures at early exits, for right and for wrong predictions."""

    edges: tuple[float, ...]
    """The edges of the bins, in the units of the rule's threshold."""
    right: tuple[int, ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True)
class Shipped:
    """The policy that a model is shipped with, measured."""

    policy: str
    point: Point


@dataclass(frozen=True)
class Section:
    name: str
    sweep: Sweep
    readiness: Mapping[str, Readiness]
    """By rule, without rules that count exits or take no threshold."""
    classes: tuple[str, ...] = ()
    elue: Mapping[str, float] = field(default_factory=dict)
    """The ELUE score of each rule, if there is a reference."""
    shipped: Shipped | None = None
    """Its rule, with the numbers that it was fitted to, is the first of the curves."""


def measure_section(
    name: str,
    trace: Trace,
    rules: Sequence[str],
    reference: Sweep | None,
    shipped: Policy | None = None,
    **options: Any,
) -> Section:
    if shipped is not None:
        rules = [rule for rule in rules if rule_in_text(rule) is not type(shipped.rule)]
    measured = sweep(trace, rules, **options)  # first, because it checks the rules
    seed = options.get("seed", 0)
    policies = {rule: parse_rule(rule) for rule in rules if is_graded(rule)}
    point = None
    if shipped is not None:
        curve = curve_of_shipped(trace, shipped, **options)
        point = measure_point(trace, shipped, options.get("padded_to"))
        measured = replace(measured, curves={curve.rule: curve, **measured.curves})
        if is_graded(curve.rule):
            policies = {curve.rule: shipped, **policies}
    readiness = {rule: measure_readiness(trace, policy, seed) for rule, policy in policies.items()}
    return Section(
        name,
        measured,
        {rule: histograms for rule, histograms in readiness.items() if histograms is not None},
        tuple(trace.label_names),
        {} if reference is None else {rule: measured.elue(rule, reference) for rule in measured.curves},
        None if point is None else Shipped(str(shipped), point),
    )


def curve_of_shipped(trace: Trace, policy: Policy, **options: Any) -> Curve:
    """The curve of a policy's rule as it was fitted."""
    text = str(policy)
    return replace(sweep(trace, policy, **options).curves[text], rule=without_threshold(text))


def without_threshold(text: str) -> str:
    """The rule of a policy's text form, with its options.

    >>> without_threshold("patience:2,tolerance=0.1"), without_threshold("never")
    ('patience,tolerance=0.1', 'never')
    """
    name, comma, options = text.partition(",")
    return name.partition(":")[0] + comma + options


def is_graded(rule: str) -> bool:
    kind = rule_in_text(rule)
    return kind is not None and kind.takes_threshold and not kind.counts_exits


def measure_readiness(trace: Trace, policy: Policy, seed: int) -> Readiness | None:
    """A prediction is right if the label is the same; without labels, and of tags, if the reference's is. None where
    there is nothing to count."""
    if not trace.problem.has_classes or len(trace.layers) == 1:
        return None
    output = apply_rule(trace, policy, seed)
    inner = output.predictions[:-1]
    if trace.labels is None or trace.problem.of_tokens:
        right = agreement_of_exits(trace, inner).T
    else:
        right = trace.problem.agree(inner, trace.labels).T
    values = policy.rule.sign * output.readiness[:, :-1]
    finite = np.isfinite(values)
    if not finite.any():
        return None
    edges = np.histogram_bin_edges(values[finite], BINS)
    return Readiness(
        edges=tuple(edges.tolist()),
        right=tuple(np.histogram(values[finite & right], edges)[0].tolist()),
        wrong=tuple(np.histogram(values[finite & ~right], edges)[0].tolist()),
    )


TICKS = 12
"""The most exits that are named on an axis."""


def charts(section: Section) -> dict[str, Chart]:
    """All charts of a section, by name."""
    sweep = section.sweep
    return {
        "curves": curves_chart(sweep, section.shipped),
        "exits": exits_chart(sweep),
        "histogram": histogram_chart(sweep, points_near_half(sweep)),
        **{f"readiness {rule}": readiness_chart(rule, seen) for rule, seen in section.readiness.items()},
    }


def curves_chart(sweep: Sweep, shipped: Shipped | None = None) -> Chart:
    """Score against mean layers for every rule, with the Pareto front, full depth and the shipped policy."""
    depth = sweep.full.cost.depth
    full = position(sweep, sweep.full)
    front = tuple(position(sweep, point) for _, point in sweep.front())
    rules = [
        Line(rule, tuple(position(sweep, point) for point in curve.points), style(index))
        for index, (rule, curve) in enumerate(sweep.curves.items())
    ]
    marked = () if shipped is None else (position(sweep, shipped.point),)
    return Chart(
        x_label=f"mean layers (of {depth})",
        y_label=f"{sweep.headline}, per cent",
        series=(
            *([Line("Pareto front", front, FRONT, wide=True)] if front else []),
            Line("full depth", ((0, full[1]), full), FULL_DEPTH),
            *rules,
            *([Line(SHIPPED_NAME, marked, SHIPPED)] if marked else []),
        ),
        x=(0, depth),
        y=padded_range([full[1], *(y for rule in rules for _, y in rule.points), *(y for _, y in marked)]),
    )


def comparison_chart(curves: Sequence[MeanCurve], depth: int, headline: str) -> Chart:
    """Score against mean layers for every rule of every model, with a band of one standard deviation."""
    lines = [
        Line(curve_name(curve, curves), tuple((x, 100 * y.mean) for x, y in curve.points), style(index))
        for index, curve in enumerate(curves)
    ]
    bands = [band(curve, style(index)) for index, curve in enumerate(curves) if curve.traces > 1]
    edges = [y for series in bands for y in (*series.low, *series.high)]
    return Chart(
        x_label=f"mean layers (of {depth})",
        y_label=f"{headline}, per cent",
        series=(*bands, *lines),
        x=(0, depth),
        y=padded_range([*edges, *(y for line in lines for _, y in line.points)]),
    )


def curve_name(curve: MeanCurve, curves: Sequence[MeanCurve]) -> str:
    """The model, and the rule if there are several."""
    return curve.model if len({other.rule for other in curves}) == 1 else f"{curve.model}, {curve.rule}"


def band(curve: MeanCurve, style: Style) -> Band:
    """One standard deviation on both sides of a curve."""
    layers, scores = zip(*curve.points, strict=True)
    low, high = (tuple(100 * (score.mean + sign * score.deviation) for score in scores) for sign in (-1, 1))
    return Band(layers, low, high, style)


def position(sweep: Sweep, point: Point) -> tuple[float, float]:
    """Where a point lies in the chart of curves."""
    return point.cost.mean_layer, 100 * sweep.score(point)


def exits_chart(sweep: Sweep) -> Chart:
    """The score of each exit if every example exited there, with the interval of the headline metric."""
    lines = [
        Line(
            metric,
            tuple(
                (layer, 100 * p.scores[metric]) for layer, p in zip(sweep.layers, sweep.per_exit, strict=True)
            ),
            style(index),
        )
        for index, metric in enumerate(sweep.metrics)
    ]
    intervals = [point.interval for point in sweep.per_exit if point.interval]
    low, high = (tuple(100 * interval[side] for interval in intervals) for side in (0, 1))
    bands = [Band(sweep.layers, low, high, style(0))] if intervals else []
    return Chart(
        x_label="layer of the exit",
        y_label="score, per cent",
        series=(*bands, *lines),
        x=(min(sweep.layers[0], 1) - 0.3, sweep.layers[-1] + 0.3),
        y=padded_range([*low, *high, *(y for line in lines for _, y in line.points)]),
        x_ticks=thin({layer: str(layer) for layer in sweep.layers}),
    )


def histogram_chart(sweep: Sweep, points: Mapping[str, Point]) -> Chart:
    """The share of examples that exit at each layer, at one point of each rule."""
    width = 0.8 / max(len(points), 1)
    bars = [
        Bars(
            f"{rule}: {point.cost.mean_layer:.1f} layers, {sweep.headline} {100 * sweep.score(point):.1f}",
            tuple(
                (exit - 0.4 + width * i, exit - 0.4 + width * (i + 1)) for exit in range(len(sweep.layers))
            ),
            tuple(100 * count / sum(point.exits) for count in point.exits),
            style(list(sweep.curves).index(rule)),
        )
        for i, (rule, point) in enumerate(points.items())
    ]
    return Chart(
        x_label="layer of the exit",
        y_label="examples, per cent",
        series=tuple(bars),
        x=(-0.6, len(sweep.layers) - 0.4),
        y=(0, 1.05 * max((height for series in bars for height in series.heights), default=100)),
        x_ticks=thin({exit: str(layer) for exit, layer in enumerate(sweep.layers)}),
    )


def points_near_half(sweep: Sweep) -> dict[str, Point]:
    """The point of each rule nearest to half of the layers, without rules that send every example to one exit."""
    near = {
        rule: min(curve.points, key=lambda point: abs(point.cost.executed_fraction - 0.5))
        for rule, curve in sweep.curves.items()
        if curve.attainable
    }
    return {rule: point for rule, point in near.items() if sum(map(bool, point.exits)) > 1}


def readiness_chart(rule: str, readiness: Readiness) -> Chart:
    """How the values of a rule are distributed for right and for wrong predictions."""
    right, wrong = shares(readiness.right), shares(readiness.wrong)
    edges = tuple(zip(readiness.edges, readiness.edges[1:], strict=False))
    outline = tuple((x, height) for ends, height in zip(edges, wrong, strict=True) for x in ends)
    return Chart(
        x_label=rule,
        y_label="predictions, per cent",
        series=(Bars("right", edges, right, CORRECT, pale=True), Line("wrong", outline, WRONG)),
        x=(readiness.edges[0], readiness.edges[-1]),
        y=(0, 1.05 * max(*right, *wrong)),
    )


def shares(counts: Sequence[int]) -> tuple[float, ...]:
    return tuple(100 * count / max(sum(counts), 1) for count in counts)


def thin(ticks: Mapping[float, str]) -> dict[float, str]:
    """At most `TICKS` of the ticks, the last included."""
    every = -(-len(ticks) // TICKS)
    return dict(list(ticks.items())[::-every])
