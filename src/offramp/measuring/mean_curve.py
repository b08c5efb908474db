"""Models side by side, from traces of the same data; traces of one model that differ in their seed are averaged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.measuring.curve import Point, Sweep
from offramp.problems import Array

GRID = 50
"""Points of a mean curve whose traces have different thresholds."""


@dataclass(frozen=True)
class Spread:
    """A number over several traces."""

    mean: float
    deviation: float
    """The standard deviation, with n - 1; 0 for one trace."""


@dataclass(frozen=True)
class MeanCurve:
    """One rule of one model, over its traces."""

    model: str
    rule: str
    traces: int
    points: tuple[tuple[float, Spread], ...]
    """Mean layers and the headline score, cheapest first."""
    full: Spread
    """The headline score of full depth."""
    area: Spread


def compare(sweeps: Mapping[str, Sweep]) -> tuple[MeanCurve, ...]:
    """Every rule of every model, given the sweeps by name; none if there is one sweep, or if the data differ.

    Names that differ only in an ending such as -seed1 are one model.
    """
    if len(sweeps) < 2 or len({(each.data, each.examples, each.metrics) for each in sweeps.values()}) > 1:
        return ()
    models: dict[str, list[Sweep]] = {}
    for name, each in sweeps.items():
        models.setdefault(model_name(name), []).append(each)
    return tuple(
        MeanCurve(
            model,
            rule,
            len(seeds),
            mean_points(rule, seeds),
            full=spread([each.score(each.full) for each in seeds]),
            area=spread([each.area(rule) for each in seeds]),
        )
        for model, seeds in models.items()
        for rule in seeds[0].curves
        if all(rule in each.curves for each in seeds)
    )


def model_name(name: str) -> str:
    """The name without its seed.

    >>> model_name("pabee-seed12"), model_name("runs/pabee_seed=3.trace"), model_name("checkpoint-500")
    ('pabee', 'runs/pabee', 'checkpoint-500')
    """
    return re.sub(r"[-_. ]?seed[-_=]?\d+(\.trace)?$", "", name) or name


def mean_points(rule: str, seeds: Sequence[Sweep]) -> tuple[tuple[float, Spread], ...]:
    """Means at each threshold, if all sweeps have the same thresholds, else at each number of layers.

    Linear between two points, because a system can choose between them at random.
    """
    curves = [each.curves[rule].points for each in seeds]
    layers = [np.array([point.cost.mean_layer for point in points]) for points in curves]
    scores = [
        np.array([each.score(point) for point in points]) for each, points in zip(seeds, curves, strict=True)
    ]
    if len({thresholds(points) for points in curves}) > 1:
        grid = np.linspace(max(map(np.min, layers)), min(map(np.max, layers)), GRID)
        scores = [interpolate(grid, *curve) for curve in zip(layers, scores, strict=True)]
        layers = [grid]
    return tuple(zip(np.mean(layers, 0).tolist(), map(spread, np.transpose(scores)), strict=True))


def thresholds(points: Sequence[Point]) -> tuple[float | None, ...]:
    return tuple(point.threshold for point in points)


def interpolate(grid: Array, layers: Array, scores: Array) -> Array:
    order = np.argsort(layers, kind="stable")
    return np.interp(grid, layers[order], scores[order])


def spread(values: Sequence[float] | Array) -> Spread:
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
