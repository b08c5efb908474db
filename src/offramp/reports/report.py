"""report(): measure traces, and show them as a table, a page, JSON and plots."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from offramp.files import write_files
from offramp.measuring import sweep
from offramp.measuring.curve import MeanCurve, compare, needs_labels
from offramp.measuring.exit_table import default_tolerance
from offramp.policy import Policy
from offramp.reports.chart import svg_file
from offramp.reports.page import page
from offramp.reports.sections import Section, charts, comparison_chart, measure_section
from offramp.reports.table import Block, comparison_rows, format_table, points_text, report_text
from offramp.trace import Trace

DEFAULT_RULES = ("agreement", "entropy", "confidence", "margin", "patience", "layer", "oracle")


def report(
    traces: Trace | Mapping[str, Trace],
    rules: Sequence[str] | None = None,
    *,
    elue_reference: Trace | None = None,
    bootstrap: int = 200,
    padded_to: int | None = None,
    opening: Sequence[Block] = (),
    shipped: Policy | None = None,
    **options: Any,
) -> "Report":
    """Measure one trace, or several by name; `bootstrap`, `padded_to` and other options are those of `sweep`.

    Traces of the same data are also compared: see `offramp.measuring.curve.compare`. With `elue_reference`,
    every rule gets its ELUE score above the exits of that trace.
    `opening` is shown first. The policy that is `shipped` is marked, and its rule is
    measured as it was fitted, first of all rules.

    The default rules depend on the kind of problem. The oracle is left out of regression, of tagging and where
    there are no labels, and agreement where scikit-learn is not installed.

    *Example*

        print(report(trace))                             # a table
        report({"sst-2": a, "rte": b}).save("report")    # report.html, report.json, report.txt
    """
    named = {traces.data or "trace": traces} if isinstance(traces, Trace) else traces
    named = {name: trace.decided() for name, trace in named.items()}

    def rules_for(trace: Trace) -> list[str]:
        chosen = rules_by_problem(trace) if rules is None else rules
        has_oracle = trace.labels is not None and trace.problem.has_classes and not trace.problem.of_tokens
        return [rule for rule in chosen if has_oracle or not needs_labels(rule)]

    options |= {"bootstrap": bootstrap, "padded_to": padded_to}
    reference = None if elue_reference is None else sweep(elue_reference, [], padded_to=padded_to)
    sections = tuple(
        measure_section(name, trace, rules_for(trace), reference, shipped, **options)
        for name, trace in named.items()
    )
    return Report(sections, compare({section.name: section.sweep for section in sections}), tuple(opening))


def rules_by_problem(trace: Trace) -> list[str]:
    """In regression, differences of a tenth of the predictions' standard deviation are tolerated."""
    rules = list(DEFAULT_RULES)
    if not trace.problem.has_classes:
        tolerance = default_tolerance(trace)
        rules = [f"agreement:0,tolerance={tolerance:g}"] if tolerance else []
        rules += [f"patience:1,tolerance={tolerance:g}", "layer"]
    if find_spec("sklearn") is None:  # which fits agreement
        rules = [rule for rule in rules if not rule.startswith("agreement")]
    return rules if trace.gates is None else [*rules, "gate"]


@dataclass(frozen=True)
class Report:
    """Measured traces: `str` is a table, `html` a page, `save` writes everything to a folder."""

    sections: tuple[Section, ...]
    comparison: tuple[MeanCurve, ...] = ()
    """The models side by side, if their data are the same."""
    opening: tuple[Block, ...] = ()
    """Shown first, such as the results of a retrofit."""

    def __str__(self) -> str:
        parts = [*map(str, self.opening), self.comparison_table(), report_text(self.sections)]
        return "\n\n".join(filter(None, parts))

    def comparison_table(self) -> str:
        """Models side by side; empty if nothing is compared."""
        if not self.comparison:
            return ""
        return f"{format_table(comparison_rows(self.comparison, self.sections[0].sweep.headline))}\n"

    def points_table(self) -> str:
        """A table of the thresholds of each rule."""
        return "\n\n".join(filter(None, [self.comparison_table(), *map(points_text, self.sections)]))

    def html(self) -> str:
        """One self-contained page that opens offline."""
        return page(self.sections, self.comparison, self.opening)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def csv(self) -> str:
        """Every point of every curve, one row each."""
        metrics = [*dict.fromkeys(metric for section in self.sections for metric in section.sweep.metrics)]
        file = io.StringIO()
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["trace", "rule", "threshold", "mean_layer", "macs", *metrics, "low", "high"])
        for section in self.sections:
            for rule, curve in section.sweep.curves.items():
                for point in curve.points:
                    scores = [point.scores.get(metric) for metric in metrics]
                    cells = [point.threshold, point.cost.mean_layer, point.cost.macs, *scores]
                    rows.writerow([section.name, rule, *cells, *(point.interval or (None, None))])
        return file.getvalue()

    def save(self, folder: str | PathLike[str], plots: bool = False) -> list[Path]:
        """Write page, JSON and table to a folder, with `plots` also every chart as SVG, and return their paths."""
        files = {
            "report.html": self.html(),
            "report.json": json.dumps(self.to_json(), indent=1),
            "report.txt": str(self) + "\n",
        }
        if plots and self.comparison:
            full = self.sections[0].sweep.full.cost
            chart = comparison_chart(self.comparison, full.depth, self.sections[0].sweep.headline)
            files["comparison.svg"] = svg_file("Comparison", chart)
        if plots:
            files |= {
                f"{number}-{file_name(section.name)}-{file_name(name)}.svg": svg_file(section.name, chart)
                for number, section in enumerate(self.sections, 1)
                for name, chart in charts(section).items()
            }
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        paths = {root / name: content for name, content in files.items()}
        write_files(paths)
        return list(paths)


def file_name(text: str) -> str:
    """Text without the characters that a file name should not have.

    >>> file_name("readiness entropy:0,top=2")
    'readiness-entropy-0-top-2'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "trace"
