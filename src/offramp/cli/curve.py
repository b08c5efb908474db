"""offramp curve: what every rule loses and saves, from traces alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from offramp.cli.command import Answer
from offramp.cli.settings import parse_numbers
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.report.report import Report
    from offramp.trace import Trace


def curve(
    traces: Annotated[list[Path], Argument(help="Files that `offramp trace` wrote.")],
    rule: Annotated[
        list[str] | None,
        Option(help="A rule, with options if wanted; may be given several times. `offramp list rules`."),
    ] = None,
    thresholds: Annotated[
        str | None, Option(help="Look at just these, such as 3,4,5; by default at all that differ.")
    ] = None,
    out: Annotated[Path | None, Option(help="A folder for the page (HTML), plots, JSON and table.")] = None,
    bootstrap: Annotated[int, Option(help="Resamples for the intervals; 0 for none.")] = 200,
    padded_to: Annotated[int | None, Option(help="Count FLOPs as if every text had so many tokens.")] = None,
) -> Answer:
    """Score and cost of every rule at every threshold.

    Everything is read off traces, without the model. Without --thresholds a table sums up each rule and layer.

    \b
    Examples:
        offramp curve mrpc.trace --out report
        offramp curve mrpc.trace --rule patience --thresholds 3,4,5,6,7,8
    """
    from offramp.report import report
    from offramp.trace import Trace

    if thresholds is not None and rule is None:
        raise BadOption("--thresholds are in the units of a rule: say which, --rule NAME.")
    found = report(
        names({path: Trace.load(path) for path in traces}),
        rule or None,
        bootstrap=bootstrap,
        thresholds="auto" if thresholds is None else parse_numbers(thresholds),
        padded_to=padded_to,
    )
    text = str(found) if thresholds is None else points_text(found)
    if out is not None:
        found.save(out)
        text += f"\n\npage: {out / 'report.html'}"
    return Answer(found.to_json(), text)


def names(traces: dict[Path, "Trace"]) -> dict[str, "Trace"]:
    """Each trace by what it is of, or by its file where that would not tell them apart."""
    found = {trace.data or path.stem: trace for path, trace in traces.items()}
    return found if len(found) == len(traces) else {str(path): trace for path, trace in traces.items()}


def points_text(found: "Report") -> str:
    """Every threshold that was asked for."""
    from offramp.report.table import aligned, headline, percent

    parts = []
    for section in found.sections:
        parts.append(f"{section.name}\n{headline(section.sweep)}")
        for rule, curve in section.sweep.curves.items():
            header = ["threshold", *section.sweep.metrics, "mean layer", "layers saved"]
            rows = [
                [
                    "-" if point.threshold is None else f"{point.threshold:g}",
                    *(percent(score) for score in point.scores.values()),
                    f"{point.cost.mean_layer:.2f}",
                    f"{percent(point.cost.saved_fraction)}",
                ]
                for point in curve.points
            ]
            parts.append(f"{rule}\n{aligned([header, *rows])}")
    return "\n\n".join(parts)
