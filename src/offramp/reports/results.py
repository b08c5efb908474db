"""The results of a retrofit: saved in the model folder as retrofit.json, as a table, and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offramp.files import read_json
from offramp.measuring.comparison import Contender
from offramp.policy import Certificate
from offramp.reports.table import format_table, percent, short
from offramp.wording import count

RETROFIT = "retrofit.json"
LOSSES = {"changed": "changed %", "overlap": "missed %", "ndcg": "nDCG lost %"}
"""Headings of the columns of mean losses."""


@dataclass(frozen=True)
class Megabytes:
    """The sizes of the model folder, of the reference for the server's audit (0: none), and of the original."""

    model: float
    reference: float
    original: float


@dataclass(frozen=True)
class Unseen:
    """The distinct test texts that occur in no other part, and how many of their predictions changed."""

    texts: int
    changed: int


@dataclass(frozen=True)
class RetrofitResults:
    """What a retrofit chose, proved and measured."""

    date: str
    original: str
    """The name of the model whose predictions are kept."""
    data: str
    unit: str
    """What counts as one example: a text, or a query with its documents."""
    examples: Mapping[str, int]
    """Examples to learn from, to calibrate on and to test on."""
    runtime: str
    precision: str
    kept_because: str
    """Why this precision was kept."""
    tuned: bool
    seed: int
    policy: str
    certificate: Certificate
    static_cut: float | None
    """The layer at which cutting the model would do as well, if there is one."""
    layers: tuple[int, ...]
    exits: tuple[float, ...]
    """The share of test texts that exit at each layer."""
    comparison: tuple[Contender, ...]
    """On the test examples: the original first, the retrofitted model last."""
    unseen: Unseen | None
    """Of the test texts; None for queries, which do not repeat."""
    full_depth_bit_equal: bool | None
    """Whether full depth in PyTorch has the same bits as the original; None if that is not expected."""
    megabytes: Megabytes

    @classmethod
    def load(cls, folder: Path) -> "RetrofitResults":
        """The results in a model folder."""
        record = read_json(folder / RETROFIT)
        return cls(
            **{
                **record,
                "certificate": Certificate.from_json(record["certificate"]),
                "layers": tuple(record["layers"]),
                "exits": tuple(record["exits"]),
                "comparison": tuple(map(Contender.from_json, record["comparison"])),
                "unseen": record["unseen"] and Unseen(**record["unseen"]),
                "megabytes": Megabytes(**record["megabytes"]),
            }
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"certificate": self.certificate.to_json()}

    @property
    def retrofitted(self) -> Contender:
        return self.comparison[-1]

    @property
    def full_depth(self) -> Contender:
        """The retrofitted model's rival in the same runtime and precision."""
        return next(rival for rival in self.comparison if rival.name == full_depth_name(self.precision))

    def table(self) -> str:
        return comparison_table(self.comparison, self.unit)

    def verdict(self) -> list[str]:
        """A few lines that can be pasted into a message."""
        size = self.megabytes
        audit = f", and {size.reference:.0f} MB for the server's audit" if size.reference else ""
        lines = [
            speed_text(self),
            *rival_text(self),
            loss_text(self),
            f"certificate: {self.certificate.summary}",
            f"exits: {exit_text(self)}; {self.retrofitted.mean_layer:.2f} of {self.layers[-1]} layers on average",
            f"policy: {short(self.policy)} in {self.precision}; {self.kept_because}",
            f"size: {size.model:.0f} MB{audit}; the original's weights are {size.original:.0f} MB",
        ]
        if self.static_cut is not None:
            lines.append(
                f"stopping every text at layer {self.static_cut:g} does just as well; consider --rule layer"
            )
        if self.full_depth_bit_equal is not None:
            equal = "" if self.full_depth_bit_equal else "NOT "
            lines.append(f"full depth in PyTorch is {equal}bit-equal to {self.original}")
        return lines


def full_depth_name(precision: str) -> str:
    return f"{precision}, full depth"


def speed_text(results: RetrofitResults) -> str:
    times = results.retrofitted.times_faster
    rival = results.retrofitted.milliseconds.times_faster_than(results.full_depth.milliseconds)
    return (
        f"{times.single:.1f} times faster than {results.original} in transformers for one {results.unit} and "
        f"{times.batch:.1f} times in batches; {rival.single:.1f} and {rival.batch:.1f} times faster than full depth "
        f"in the same runtime ({results.precision})"
    )


def rival_text(results: RetrofitResults) -> list[str]:
    """Where exits save no time, say so."""
    rival = results.retrofitted.milliseconds.times_faster_than(results.full_depth.milliseconds)
    cases = {f"for one {results.unit}": rival.single, "in batches": rival.batch}
    slower = [case for case, times in cases.items() if times <= 1]
    return [f"full depth is as fast {' and '.join(slower)}: there, consider --policy never"] if slower else []


def loss_text(results: RetrofitResults) -> str:
    """The losses on the test examples; for a share of predictions, with its 95% interval (Clopper-Pearson)."""
    losses, examples = results.retrofitted.losses, results.examples["test"]
    if "changed" not in losses:
        missed, top_k = losses["overlap"], results.certificate.top_k
        return f"on {count(examples, 'test query')}, {percent(missed)}% of the top {top_k} was missed"
    text = f"predictions changed: {share_text(round(losses['changed'] * examples), examples, 'test text')}"
    if results.unseen is None or results.unseen.texts == examples:
        return text
    new = share_text(results.unseen.changed, results.unseen.texts, "distinct test text")
    return f"{text}; {new} that occur in no other part"


def share_text(number: int, total: int, unit: str) -> str:
    from scipy.stats import binomtest

    if not total:
        return f"no {unit}s"
    interval: Any = binomtest(number, total).proportion_ci()
    return (
        f"{number} of {count(total, unit)}, {percent(number / total)}% "
        f"(95% interval {percent(interval.low)} to {percent(interval.high)}%)"
    )


def exit_text(results: RetrofitResults) -> str:
    """Where texts exit, without exits that fewer than one in a hundred take."""
    shares = zip(results.layers, results.exits, strict=True)
    return ", ".join(f"{100 * share:.0f}% at layer {layer}" for layer, share in shares if share >= 0.01)


def comparison_table(rows: Sequence[Contender], unit: str = "text") -> str:
    """The contenders one below the other; times are those of the first one's speed."""
    losses, metrics = [*rows[0].losses], [*rows[0].scores]
    header = [
        "",
        *metrics,
        *(LOSSES[risk] for risk in losses),
        *("mean layer", f"ms, one {unit}", "times", "ms, batches", "times"),
    ]
    body = [
        [
            row.name,
            *(percent(row.scores[metric]) for metric in metrics),
            *(percent(row.losses[risk]) for risk in losses),
            f"{row.mean_layer:.2f}",
            f"{row.milliseconds.single:.2f}",
            f"{row.times_faster.single:.1f}",
            f"{row.milliseconds.batch:.2f}",
            f"{row.times_faster.batch:.1f}",
        ]
        for row in rows
    ]
    return format_table([header, *body])
