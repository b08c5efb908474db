"""The results of a retrofit: saved in the model folder as retrofit.json, as a table, and in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from offramp.errors import CannotLoad
from offramp.files import read_json
from offramp.guarantees.certificate import Certificate
from offramp.guarantees.comparison import GroupDifferences
from offramp.measuring.changes import Changes
from offramp.measuring.speed import Contender, Speed
from offramp.reports.table import Block, format_table, percent, short, shortened
from offramp.wording import count, plural

RETROFIT, FULL_DEPTH = "retrofit.json", "full depth"
HEADINGS = {
    "changed": "changed %",
    "missed": "missed, % of yes",
    "false_alarm": "false alarms, % of no",
    "missed_of_all": "missed, % of all",
    "false_alarm_of_all": "false alarms, % of all",
    "score": "score moved %",
    "accuracy": "accuracy lost %",
    "label_accuracy": "accuracy lost, % of labels",
    "accuracy_drop": "accuracy lost, net %",
    "overlap": "missed %",
    "ndcg": "nDCG lost %",
}
"""Headings of mean losses."""
TAG_HEADINGS = {"missed": "with a missed word %", "missed_share": "missed words %"}
"""Headings of the losses of taggers."""
OF_LABELS = {
    "label": ("spans", "changed", "spans"),
    "label of words": ("words in spans", "missed", "words"),
}
"""By the labels of a tagger: what is counted, and what may have happened to it."""
PARTS = {"learn": "learn from", "fit": "fit a rule on", "calibration": "calibrate on", "test": "test on"}
PACKAGES = ("python", "torch", "transformers", "onnxruntime")
LONGEST_TEXT = 300


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
    asked: Mapping[str, Any]
    """What the policy was calibrated for: guarantee, rules, ladder and precisions."""
    policy: str
    certificate: Certificate
    fixed_layer: int | None
    """The layer at which every text stops, if exits at different layers are not faster under the same guarantee."""
    layers: tuple[int, ...]
    exits: tuple[float, ...]
    """The share of test texts that exit at each layer."""
    comparison: tuple[Contender, ...]
    """On the test examples: the original first, the retrofitted model last."""
    unseen: Unseen | None
    """Changes among test texts that occur in no other part; None for queries, which do not repeat."""
    full_depth_bit_equal: bool | None
    """Whether full depth in PyTorch has the same bits as the original; None if that is not expected."""
    changes: Mapping[str, tuple[GroupDifferences, ...]]
    """Changes among the test texts, by what groups them, such as "exit"; for queries, of the original's top k."""
    megabytes: Megabytes
    machine: Mapping[str, Any]
    """The machine that the times were measured on."""
    full_depths: tuple[str, ...] = ()
    """The precisions whose full depth is proven to keep the guarantee too."""

    @classmethod
    def load(cls, folder: Path) -> "RetrofitResults":
        """The results in a model folder."""
        record = read_json(folder / RETROFIT)
        try:
            return cls(
                **{
                    **record,
                    "certificate": Certificate.from_json(record["certificate"]),
                    "layers": tuple(record["layers"]),
                    "exits": tuple(record["exits"]),
                    "full_depths": tuple(record.get("full_depths", ())),
                    "comparison": tuple(map(Contender.from_json, record["comparison"])),
                    "changes": {
                        what: tuple(GroupDifferences(**group) for group in groups)
                        for what, groups in record["changes"].items()
                    },
                    "unseen": record["unseen"] and Unseen(**record["unseen"]),
                    "megabytes": Megabytes(**record["megabytes"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise CannotLoad(
                f"{folder / RETROFIT} is of another version ({error}); retrofit into another folder."
            ) from error

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"certificate": self.certificate.to_json()}

    @property
    def retrofitted(self) -> Contender:
        return self.comparison[-1]

    @property
    def full_depth(self) -> Contender:
        """The strongest rival in the same runtime: the fastest full depth of the original, of the same precision, or
        of one that is proven to keep the guarantee."""
        names = {full_depth_name(precision) for precision in ("fp32", self.precision, *self.full_depths)}
        rivals = [rival for rival in self.comparison if rival.name in names]
        return min(rivals, key=lambda rival: rival.milliseconds.cost)

    def table(self) -> str:
        return format_table(self.rows())

    def rows(self) -> list[list[str]]:
        """The comparison, with a header."""
        return contender_rows(self.comparison, self.unit, self.full_depth)

    def verdict(self) -> list[str]:
        """A few lines that can be pasted into a message."""
        return [*self.gain(), f"certificate: {self.certificate.summary}", *self.details()]

    def gain(self) -> list[str]:
        """What the retrofit gained and lost."""
        return [speed_text(self), *rival_text(self), loss_text(self)]

    def details(self) -> list[str]:
        size = self.megabytes
        audit = f", and {size.reference:.0f} MB for the server's audit" if size.reference else ""
        lines = [
            f"exits: {exit_text(self)}; {self.retrofitted.mean_layer:.2f} of {self.layers[-1]} layers on average",
            f"policy: {short(self.policy)} in {self.precision}; {self.kept_because}",
            f"size: {size.model:.0f} MB{audit}; the original's weights are {size.original:.0f} MB",
        ]
        if self.full_depth_bit_equal is not None:
            equal = "" if self.full_depth_bit_equal else "NOT "
            lines.append(f"full depth in PyTorch is {equal}bit-equal to {self.original}")
        return lines

    def blocks(self, changes: Changes) -> tuple[Block, ...]:
        """A page for those who decide, with the examples that changed, which are not stored with the model."""
        proof = self.certificate
        return (
            Block(f"{self.original}, made faster", [*origin_lines(self), *self.gain()], self.rows()),
            Block("Certificate", [proof.summary, proof.promise, proof.evidence]),
            *change_blocks(self),
            *example_blocks(self, changes),
            Block("Details", self.details()),
        )


def full_depth_name(precision: str) -> str:
    return f"{precision}, {FULL_DEPTH}"


def speed_text(results: RetrofitResults) -> str:
    """Compared with transformers, and with the strongest rival in the same runtime."""

    def compared(times: Speed, rival: str) -> str:
        return f"{pace(times.single)} than {rival} for one {results.unit} and {pace(times.batch)} in batches"

    rival = results.full_depth
    times = results.retrofitted.milliseconds.times_faster_than(rival.milliseconds)
    return (
        f"{compared(results.retrofitted.times_faster, f'{results.original} in transformers')}; "
        f"{compared(times, f'{FULL_DEPTH} in the same runtime ({precision_of(rival)})')}"
    )


def precision_of(full_depth: Contender) -> str:
    return full_depth.name.removesuffix(f", {FULL_DEPTH}")


def pace(times: float) -> str:
    return f"{times:.1f} times faster" if round(times, 1) >= 1 else f"{1 / times:.1f} times slower"


def rival_text(results: RetrofitResults) -> list[str]:
    """Where exits at different layers save no time, say so."""
    units = plural(results.unit)
    if results.fixed_layer == results.layers[-1]:
        return [
            f"full depth is as fast as any exits under the same guarantee, so all {units} run to full depth"
        ]
    if results.fixed_layer is not None:
        cut = "; a model cut there (offramp train --layers) may be as good" if results.fixed_layer else ""
        return [
            f"one layer for all is as fast as exits at different layers under the same guarantee, so all {units} "
            f"stop at layer {results.fixed_layer}{cut}"
        ]
    rival = results.full_depth
    times_faster = results.retrofitted.milliseconds.times_faster_than(rival.milliseconds)
    cases = {f"for one {results.unit}": times_faster.single, "in batches": times_faster.batch}
    slower = [case for case, times in cases.items() if times <= 1]
    if not slower:
        return []
    precision, where = precision_of(rival), " and ".join(slower)
    if precision in ("fp32", results.precision):
        return [f"full depth is as fast {where}: there, consider --policy never"]
    return [f"full depth in {precision} is as fast {where}: there, consider --precision {precision}"]


def loss_text(results: RetrofitResults) -> str:
    """The losses on the test examples; for a share of predictions, with its interval."""
    losses, examples = results.retrofitted.losses, results.examples["test"]
    if "changed" not in losses:
        missed, top_k = losses["overlap"], results.certificate.top_k
        return f"on {count(examples, 'test query')}, {percent(missed)}% of the top {top_k} was missed"
    changed = share_text(round(losses["changed"] * examples), examples, "test text")
    if "missed_share" in losses:  # of a tagger
        with_missed = share_text(round(losses["missed"] * examples), examples, "test text")
        return (
            f"spans changed: {changed}; a marked word is missed: {with_missed}, and on average over texts "
            f"{percent(losses['missed_share'])}% of the marked words"
        )
    text = f"predictions changed: {changed}"
    if results.unseen is None or results.unseen.texts == examples:
        return text
    new = share_text(results.unseen.changed, results.unseen.texts, "distinct test text")
    return f"{text}; {new} that occur in no other part"


def share_text(number: int, total: int, unit: str) -> str:
    if not total:
        return f"no {unit}s"
    low, high = interval(number, total)
    return (
        f"{number} of {count(total, unit)}, {percent(number / total)}% "
        f"(95% interval {percent(low)} to {percent(high)}%)"
    )


def interval(number: int, total: int) -> tuple[float, float]:
    """Clopper and Pearson's, with 95% confidence, of a share."""
    from scipy.stats import binomtest

    bounds: Any = binomtest(number, total).proportion_ci()
    return bounds.low, bounds.high


def exit_text(results: RetrofitResults) -> str:
    """Where texts exit, without exits that fewer than one in a hundred take."""
    shares = zip(results.layers, results.exits, strict=True)
    return ", ".join(f"{100 * share:.0f}% at layer {layer}" for layer, share in shares if share >= 0.01)


def origin_lines(results: RetrofitResults) -> list[str]:
    """The model, the data, the machine and the date."""
    parts = ", ".join(f"{number} to {PARTS[name]}" for name, number in results.examples.items())
    machine = dict(results.machine)
    packages = [f"{name} {machine[name]}" for name in PACKAGES if name in machine]
    cpu = (
        f"{machine['cpu'] or machine['machine']}, {count(machine['threads'], 'thread')}, {machine['system']}"
    )
    units = plural(results.unit)
    return [
        f"model: {results.original}, {count(results.layers[-1], 'layer')}",
        f"data: {results.data} ({units}: {parts})",
        f"measured on {results.date}: {cpu}; {', '.join(packages)}",
    ]


def change_blocks(results: RetrofitResults) -> list[Block]:
    """How often predictions changed in each group."""
    ranked = results.unit == "query"
    counted, event, name = "texts", "changed", "predictions"
    if ranked:
        counted, event, name = f"documents of the top {results.certificate.top_k}", "missed", "documents"
    note = "A bound for all says nothing about a group: there, more may have changed."
    of_texts = counted, event, name
    blocks = []
    for what, groups in results.changes.items():
        counted, event, name = OF_LABELS.get(what, of_texts)
        rows = [[what, counted, event, "%", "95% interval"], *map(group_row, groups)]
        title = f"{event.capitalize()} {name}, by {what.removesuffix(' of words')}"
        blocks.append(Block(title, [note], rows))
    return [*blocks[:1], *(replace(block, lines=()) for block in blocks[1:])]


def group_row(group: GroupDifferences) -> list[str]:
    low, high = interval(group.different, group.rows)
    share = percent(group.different / group.rows)
    return [
        group.name,
        str(group.rows),
        str(group.different),
        share,
        f"{percent(low)} to {percent(high)}",
    ]


def example_blocks(results: RetrofitResults, changes: Changes) -> list[Block]:
    examples, total = changes.examples, sum(group.different for group in results.changes.get("exit", ()))
    if not examples:
        return []
    shown = "" if len(examples) == total else f", {len(examples)} of {total}"
    of_tags = "label of words" in results.changes
    what = "Documents that are missed" if results.unit == "query" else "Texts whose prediction changed"
    what = "Texts whose spans changed" if of_tags else what
    rows = [
        [str(layer), example.old, example.new, shortened(example.text or "", LONGEST_TEXT)]
        for example, layer in zip(examples, changes.layers, strict=True)
    ]
    return [Block(f"{what}{shown}", rows=[["layer", results.original, "now", "text"], *rows])]


def contender_rows(
    contenders: Sequence[Contender], unit: str = "text", rival: Contender | None = None
) -> list[list[str]]:
    """A column for each contender; how many times faster they are than the first one, and than a rival."""

    def row(name: str, values: Iterable[float], digits: int) -> list[str]:
        return [name, *(f"{value:.{digits}f}" for value in values)]

    def times(case: str, field: str) -> list[list[str]]:
        """How many times faster than the first one, and than the rival."""
        return [
            row(
                f"{case}, times {other.name}",
                (getattr(other.milliseconds, field) / ms for ms in of(field)),
                1,
            )
            for other in ([contenders[0]] if rival is None else [contenders[0], rival])
        ]

    def of(field: str) -> list[float]:
        return [getattr(contender.milliseconds, field) for contender in contenders]

    headings = HEADINGS | (TAG_HEADINGS if "missed_share" in contenders[0].losses else {})
    return [
        ["", *(contender.name for contender in contenders)],
        *(
            row(name, (100 * contender.scores[name] for contender in contenders), 1)
            for name in contenders[0].scores
        ),
        *(
            row(headings[risk], (100 * contender.losses[risk] for contender in contenders), 1)
            for risk in contenders[0].losses
        ),
        row("mean layer", (contender.mean_layer for contender in contenders), 2),
        row(f"one {unit}, ms", of("single"), 2),
        row(f"one {unit}, p50", of("p50"), 2),
        row(f"one {unit}, p95", of("p95"), 2),
        *times(f"one {unit}", "single"),
        row("batches, ms", of("batch"), 2),
        *times("batches", "batch"),
        row(
            f"hours, a million {plural(unit)}",
            map(hours_per_million, of("batch")),
            2,
        ),
    ]


def hours_per_million(milliseconds: float) -> float:
    """Hours on this machine; times its price per hour, that is the cost."""
    return milliseconds * 1e6 / 3.6e6
