"""offramp curve: score and cost of exit rules, from traces."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.options import ForceOption, check_output
from offramp.errors import BadOption
from offramp.files import write_files

if TYPE_CHECKING:
    from offramp.trace import Trace


def curve(
    traces: Annotated[
        list[Path], Argument(help="Trace files, written by `offramp trace`, or folders of them.")
    ],
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
    csv: Annotated[Path | None, Option(help="A file for every point of every curve.")] = None,
    elue: Annotated[
        Path | None,
        Option(help="Show ELUE scores above the exits of this trace; ELUE uses ElasticBERT's."),
    ] = None,
    bootstrap: Annotated[int, Option(help="Resamples for the intervals; 0 for none.")] = 200,
    padded_to: Annotated[
        int | None, Option(help="Count FLOPs as if every text were padded to this many tokens.")
    ] = None,
) -> Result:
    """Score and cost of every rule at every threshold.

    Reads traces and needs no model. Without --thresholds, a table summarizes each rule and layer. Several traces of
    the same data are also compared, in a table and in one chart. Files whose names differ only in an ending such as
    -seed1 are one model, shown by mean and standard deviation.

    \b
    Examples:
        offramp curve mrpc.trace --out report --plots
        offramp curve mrpc.trace --rule patience --thresholds 3,4,5,6,7,8
        offramp curve a-seed1.trace a-seed2.trace b-seed1.trace b-seed2.trace --rule entropy --csv points.csv
    """
    from offramp.reports import report
    from offramp.trace import Trace

    if thresholds is not None and rule is None:
        raise BadOption("--thresholds needs --rule: each rule has its own units.")
    if plots and out is None:
        raise BadOption("--plots needs --out, the folder to save to.")
    files = [file for path in traces for file in list_traces(path)]
    for flag, output in {"--out": out, "--csv": csv}.items():
        if output is not None:
            check_output(output, force, *files, flag=flag)
    measured = report(
        name_traces({file: Trace.load(file) for file in files}),
        rule or None,
        bootstrap=bootstrap,
        thresholds="auto" if thresholds is None else parse_thresholds(thresholds),
        padded_to=padded_to,
        elue_reference=None if elue is None else Trace.load(elue),
    )
    text = str(measured) if thresholds is None else measured.points_table()
    if out is not None:
        measured.save(out, plots)
        text += f"\n\npage: {out / 'report.html'}"
    if csv is not None:
        write_files({csv: measured.csv()})
    return Result(measured.to_json(), text)


def list_traces(path: Path) -> list[Path]:
    """The traces of a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    if not (files := sorted(path.glob("*.trace"))):
        raise BadOption(f"{path}: no files that end in .trace.")
    return files


def name_traces(traces: dict[Path, "Trace"]) -> dict[str, "Trace"]:
    """Traces by the first of these that differs: the name of the data, of the file, and its path."""
    names = [[trace.data or path.stem, path.stem, str(path)] for path, trace in traces.items()]
    different = next(column for column in zip(*names, strict=True) if len({*column}) == len(traces))
    return dict(zip(different, traces.values(), strict=True))


def parse_thresholds(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise BadOption(f"--thresholds {text!r}: expected comma-separated numbers, such as 3,4,5.") from None
