"""report(): one call from traces to everything that a person looks at."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from offramp.atomic import write_files
from offramp.problems import REGRESSION
from offramp.report.page import page
from offramp.report.plots import save_plots
from offramp.report.sections import Section, measure
from offramp.report.table import text
from offramp.trace import Trace

RULES = ("entropy", "confidence", "margin", "patience", "layer", "oracle")


def report(
    traces: Trace | Mapping[str, Trace],
    rules: Sequence[str] | None = None,
    *,
    bootstrap: int = 200,
    **options: Any,
) -> "Report":
    """Measure one trace, or several by name; `bootstrap` and further options are those of `sweep`.

    Without `rules`, those that decide for each trace's kind of problem are taken.

    *Example*

        print(report(trace))                             # a table
        report({"sst-2": a, "rte": b}).save("report")    # report.html, report.json, report.txt, plots

    The oracle is left out where a trace has no labels.
    """
    named = {traces.data or "trace": traces} if isinstance(traces, Trace) else traces

    def possible(trace: Trace) -> list[str]:
        wanted = usual_rules(trace) if rules is None else rules
        return [rule for rule in wanted if rule != "oracle" or can_be_right(trace)]

    return Report(
        tuple(measure(name, trace, possible(trace), bootstrap, **options) for name, trace in named.items())
    )


def usual_rules(trace: Trace) -> list[str]:
    """With numbers, patience lets those agree that differ by less than a tenth of their spread."""
    rules = list(RULES)
    if trace.problem_type == REGRESSION:
        answers = trace.logits[:, -1]
        spread = float(np.std(answers, where=np.isfinite(answers))) if np.isfinite(answers).any() else 0.0
        rules = [f"patience:1,tolerance={spread / 10:.2g}", "layer"]
    return rules if trace.gates is None else [*rules, "gate"]


def can_be_right(trace: Trace) -> bool:
    return trace.labels is not None and trace.problem_type != REGRESSION


@dataclass(frozen=True)
class Report:
    """Traces, measured: `str` is a table, `html` a page, `save` writes all of it."""

    sections: tuple[Section, ...]

    def __str__(self) -> str:
        return text(self.sections)

    def html(self) -> str:
        """One page that needs nothing else: it can be mailed, and opens offline."""
        return page(self.sections)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(tuple(map(Section.from_json, fields["sections"])))

    def save(self, folder: str | PathLike[str], plots: Sequence[str] = ("png", "svg")) -> list[Path]:
        """Write page, JSON, table and plots into a folder, and tell which files these are."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        drawn = [
            path
            for number, section in enumerate(self.sections, 1)
            for path in (save_plots(section, root / file_name(number, section.name), plots) if plots else [])
        ]
        texts = {
            "report.html": self.html(),
            "report.json": json.dumps(self.to_json(), indent=1),
            "report.txt": str(self) + "\n",
        }
        write_files({root / name: content for name, content in texts.items()})
        return [*(root / name for name in texts), *drawn]


def file_name(number: int, name: str) -> str:
    """A name is free text; its letters and digits and a number make a file."""
    return f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-') or 'trace'}"
