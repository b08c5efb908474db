"""Draws charts as PNG and SVG files, with matplotlib, which is imported when the first is drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offramp.errors import MissingExtra, install_hint
from offramp.reports.chart import Band, Bars, Chart, Line, Series
from offramp.reports.sections import (
    Section,
    curves_chart,
    exits_chart,
    histogram_chart,
    points_near_half,
    readiness_chart,
)

DPI = 150


def save_plots(section: Section, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Save the charts of a section as STEM-curves.png, STEM-exits.png and so on."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a plot {install_hint('matplotlib', 'plot')}") from error

    sweep = section.sweep
    plots = {
        "curves": [curves_chart(sweep)],
        "exits": [exits_chart(sweep)],
        "histogram": [histogram_chart(sweep, points_near_half(sweep))],
        "readiness": [readiness_chart(rule, each) for rule, each in section.readiness.items()],
    }
    paths = []
    for name, charts in plots.items():
        if not charts:
            continue
        figure = Figure(figsize=(7, 4.8), layout="constrained")
        figure.suptitle(literal(section.name), fontsize=11)
        draw(figure, charts)
        for ending in formats:
            path = stem.parent / f"{stem.name}-{name}.{ending}"
            figure.savefig(path, dpi=DPI)
            paths.append(path)
    return paths


def draw(figure: Any, charts: Sequence[Chart]) -> None:
    """Charts in rows of up to three, with the legend of the first below them all."""
    columns = min(len(charts), 3)
    grid = figure.subplots(-(-len(charts) // columns), columns, squeeze=False).flatten()
    for axes in grid[len(charts) :]:
        axes.axis("off")
    for axes, chart in zip(grid, charts, strict=False):
        axes.set(xlabel=literal(chart.x_label), ylabel=literal(chart.y_label), xlim=chart.x, ylim=chart.y)
        if chart.x_ticks is not None:
            axes.set_xticks(list(chart.x_ticks), list(chart.x_ticks.values()))
        for order, series in enumerate(chart.series):
            draw_series(axes, series, order)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
    if charts[0].legend:
        figure.legend(
            *grid[0].get_legend_handles_labels(),
            fontsize=8,
            frameon=False,
            loc="outside lower center",
            ncols=3,
        )


def draw_series(axes: Any, series: Series, order: int) -> None:
    common = {"color": series.style.colour, "zorder": 2 + order / 100}
    match series:
        case Line(name, points, style):
            axes.plot(
                *zip(*points, strict=True),
                **common,
                label=literal(name),
                dashes=style.dashes or (None, None),
                linewidth=6 if series.wide else 1.5,
                alpha=0.3 if series.wide else 1,
                solid_capstyle="round",
                marker=style.mark or None,
                markersize=8 if series.is_single_point else 4,
                markevery=series.mark_every,
                clip_on=False,  # marks on the edge of the range
            )
            if series.is_single_point:
                axes.annotate(literal(name), points[0], (8, -3), textcoords="offset points", fontsize=8)
        case Band(x, low, high):
            axes.fill_between(x, low, high, **common, alpha=0.15, linewidth=0)
        case Bars(name, edges, heights, style):
            axes.bar(
                [left for left, _ in edges],
                heights,
                [right - left for left, right in edges],
                align="edge",
                **common,
                label=literal(name),
                hatch=style.hatch,
                edgecolor="white",
                linewidth=0 if series.pale else 0.5,
                alpha=0.45 if series.pale else 1,
            )


def literal(text: str) -> str:
    """Text in which matplotlib does not read dollars as mathematics."""
    return text.replace("$", r"\$")
