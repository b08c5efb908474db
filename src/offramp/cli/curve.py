"""offramp curve: score and cost of exit rules, from traces."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.key_values import parse_numbers
from offramp.cli.options import ForceOption, check_output
from offramp.errors import BadOption

if TYPE_CHECKING:
    from offramp.reports.report import Report
    from offramp.trace import Trace


def curve(
    traces: Annotated[list[Path], Argument(help="Trace files, written by `offramp trace`.")],
    rule: Annotated[
        list[str] | None,
        Option(help="A rule, with its options if any; repeat for several. See `offramp list rules`."),
    ] = None,
    thresholds: Annotated[
        str | None, Option(help="Only these thresholds, such as 3,4,5; by default all that give other exits.")
    ] = None,
    out: Annotated[Path | None, Option(help="A folder for the page (HTML), JSON and table.")] = None,
    force: ForceOption = False,
    plots: Annotated[bool, Option("--plots", help="Also save every chart in --out as an SVG file.")] = False,
    bootstrap: Annotated[int, Option(help="Resamples for the intervals; 0 for none.")] = 200,
    padded_to: Annotated[
        int | None, Option(help="Count FLOPs as if every text were padded to this many tokens.")
    ] = None,
) -> Result:
    """Score and cost of every rule at every threshold.

    Reads traces and needs no model. Without --thresholds, a table summarizes each rule and layer.

    \b
    Examples:
        offramp curve mrpc.trace --out report --plots
        offramp curve mrpc.trace --rule patience --thresholds 3,4,5,6,7,8
    """
    from offramp.reports import report
    from offramp.trace import Trace

    if thresholds is not None and rule is None:
        raise BadOption("--thresholds needs --rule: each rule has its own units.")
    if plots and out is None:
        raise BadOption("--plots needs --out, the folder to save to.")
    if out is not None:
        check_output(out, force, *traces)
    found = report(
        name_traces({path: Trace.load(path) for path in traces}),
        rule or None,
        bootstrap=bootstrap,
        thresholds="auto" if thresholds is None else parse_numbers(thresholds),
        padded_to=padded_to,
    )
    text = str(found) if thresholds is None else points_table(found)
    if out is not None:
        found.save(out, plots)
        text += f"\n\npage: {out / 'report.html'}"
    return Result(found.to_json(), text)


def name_traces(traces: dict[Path, "Trace"]) -> dict[str, "Trace"]:
    """Traces by the name of their data, or by file if two have the same name."""
    found = {trace.data or path.stem: trace for path, trace in traces.items()}
    return found if len(found) == len(traces) else {str(path): trace for path, trace in traces.items()}


def points_table(found: "Report") -> str:
    """A table of the thresholds for each rule."""
    from offramp.reports.table import format_table, percent, summary_line, threshold_text

    parts = []
    for section in found.sections:
        parts.append(f"{section.name}\n{summary_line(section.sweep)}")
        for rule, curve in section.sweep.curves.items():
            header = ["threshold", *section.sweep.metrics, "mean layer", "layers saved"]
            rows = [
                [
                    threshold_text(point.threshold),
                    *(percent(score) for score in point.scores.values()),
                    f"{point.cost.mean_layer:.2f}",
                    percent(point.cost.saved_fraction),
                ]
                for point in curve.points
            ]
            parts.append(f"{rule}\n{format_table([header, *rows])}")
    return "\n\n".join(parts)
