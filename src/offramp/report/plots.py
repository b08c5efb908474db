"""PNG and SVG plots of a section, by matplotlib."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offramp.curves import Point, Sweep
from offramp.errors import MissingExtra, install_hint
from offramp.report.sections import Section
from offramp.report.style import COLOURS, GREY, RIGHT, WRONG, style

DPI = 150


def save_plots(section: Section, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Draw every plot of a section to STEM-curves.png, STEM-exits.png and so on."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a plot {install_hint('matplotlib', 'plot')}") from error

    drawings: dict[str, Callable[[Any, Section], None]] = {
        "curves": draw_curves,
        "exits": draw_exits,
        "histogram": draw_histogram,
    }
    if section.readiness:
        drawings["readiness"] = draw_readiness
    paths = []
    for name, draw in drawings.items():
        figure = Figure(figsize=(7, 4.8), layout="constrained")
        draw(figure, section)
        figure.suptitle(plain(section.name), fontsize=11)
        for ending in formats:
            path = stem.parent / f"{stem.name}-{name}.{ending}"
            figure.savefig(path, dpi=DPI)
            paths.append(path)
    return paths


def draw_curves(figure: Any, section: Section) -> None:
    """Score against layers for all rules, with the front and the full-depth line."""
    found = section.sweep
    axes = figure.subplots()
    axes.axhline(100 * found.score(found.full), color=GREY, linewidth=1, linestyle=":", label="full depth")
    for index, (rule, curve) in enumerate(found.curves.items()):
        look = style(index)
        alone = len(curve.points) == 1
        axes.plot(
            [point.cost.mean_layer for point in curve.points],
            [100 * found.score(point) for point in curve.points],
            color=look.colour,
            dashes=look.dashes or (None, None),
            marker=look.mark,
            markersize=8 if alone else 4,
            markevery=max(1, len(curve.points) // 12),
            linewidth=1.5,
            label=plain(rule),
        )
        if alone:
            place = (curve.points[0].cost.mean_layer, 100 * found.score(curve.points[0]))
            axes.annotate(plain(rule), place, (8, -3), textcoords="offset points", fontsize=8)
    front = [point for _, point in found.front()]
    axes.plot(
        [point.cost.mean_layer for point in front],
        [100 * found.score(point) for point in front],
        color=GREY,
        linewidth=6,
        alpha=0.3,
        zorder=0,
        solid_capstyle="round",
        label="Pareto front",
    )
    axes.set(xlabel=f"mean layers (of {found.full.cost.depth})", ylabel=f"{found.headline}, per cent")
    finish(axes)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=3)


def draw_exits(figure: Any, section: Section) -> None:
    """The score of each exit, if everybody left there."""
    found = section.sweep
    axes = figure.subplots()
    for index, metric in enumerate(found.metrics):
        look = style(index)
        scores = [100 * point.scores[metric] for point in found.per_exit]
        axes.plot(
            found.layers,
            scores,
            color=look.colour,
            dashes=look.dashes or (None, None),
            marker=look.mark,
            label=plain(metric),
        )
    if all(point.interval for point in found.per_exit):
        low, high = (
            [100 * point.interval[side] for point in found.per_exit if point.interval] for side in (0, 1)
        )
        axes.fill_between(found.layers, low, high, color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.set(xlabel="layer of the exit", ylabel="score, per cent", xticks=found.layers)
    finish(axes)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=3)


def draw_histogram(figure: Any, section: Section) -> None:
    """Where examples leave, for each rule near half of the layers."""
    found = section.sweep
    shown = {rule: near_half(found, curve.points) for rule, curve in found.curves.items() if curve.attainable}
    shown = {rule: point for rule, point in shown.items() if sum(map(bool, point.exits)) > 1}
    axes = figure.subplots()
    width = 0.8 / max(len(shown), 1)
    places = np.arange(len(found.layers))
    for index, (rule, point) in enumerate(shown.items()):
        look = style(list(found.curves).index(rule))
        axes.bar(
            places + width * (index - (len(shown) - 1) / 2),
            100 * np.array(point.exits) / found.examples,
            width,
            color=look.colour,
            hatch=look.hatch,
            edgecolor="white",
            linewidth=0.5,
            label=f"{plain(rule)}: {point.cost.mean_layer:.1f} layers, {100 * found.score(point):.1f}",
        )
    axes.set(xlabel="layer of the exit", ylabel="examples that leave, per cent", xticks=places)
    axes.set_xticklabels([str(layer) for layer in found.layers])
    finish(axes)
    if shown:
        figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=2)


def near_half(found: Sweep, points: Sequence[Point]) -> Point:
    return min(points, key=lambda point: abs(point.cost.executed_fraction - 0.5))


def draw_readiness(figure: Any, section: Section) -> None:
    """What each rule saw where the answer was right and where it was wrong."""
    columns = min(len(section.readiness), 3)
    grid = figure.subplots(-(-len(section.readiness) // columns), columns, squeeze=False)
    for axes in grid.flat[len(section.readiness) :]:
        axes.axis("off")
    for axes, (rule, seen) in zip(grid.flat, section.readiness.items(), strict=False):
        for counts, colour, filled, label in (
            (seen.right, RIGHT, True, "right"),
            (seen.wrong, WRONG, False, "wrong"),
        ):
            share = 100 * np.array(counts) / max(sum(counts), 1)
            axes.stairs(
                share,
                seen.edges,
                fill=filled,
                color=colour,
                alpha=0.45 if filled else 1,
                linewidth=1.8,
                label=label,
            )
        axes.set(xlabel=plain(rule), ylabel="answers, per cent")
        finish(axes)
        axes.legend(fontsize=8, frameon=False)


def finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(labelsize=8)


def plain(name: str) -> str:
    """A name as it is: matplotlib would read dollars as mathematics."""
    return name.replace("$", r"\$")
