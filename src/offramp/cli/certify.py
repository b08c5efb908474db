"""offramp certify: may one model replace another? A bound on what changes, proven from predictions of both."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import BadInput, Result
from offramp.cli.options import RuntimeOptions, TextOption, TextPairOption, check_writable, split_names
from offramp.cli.rows import Row, read_column, read_labels, read_rows
from offramp.errors import BadData, BadLabels, BadOption, CannotLoad, Incompatible, UnknownName

if TYPE_CHECKING:
    from offramp.cli.predictors import Predictor
    from offramp.guarantees.certify import Certification
    from offramp.guarantees.operating_point import OperatingPoint
    from offramp.problems import Array

NOT_PROVEN = 3
NO_LABELS = "a risk that compares with the correct labels needs their column; name it with --label"
FILES = (".csv", ".tsv", ".jsonl", ".parquet")
SIDE_HELP = (
    "A file of predictions, a model (a folder, a hub name or an .onnx file), or the address of a server."
)


@dataclass(frozen=True)
class ClaimOptions:
    """What is to be proven."""

    guarantee: Annotated[
        str, Option(help="Upper bound on the risk, such as 0.02; or several: missed=0.02,false_alarm=0.05.")
    ] = "0.02"
    risk: Annotated[
        str,
        Option(
            help="What is bounded: changed, missed, false_alarm (or missed_of_all, false_alarm_of_all), score, "
            "accuracy, accuracy_drop."
        ),
    ] = "changed"
    by: Annotated[
        str,
        Option(help="It holds within each group: class (that OLD predicts), or a column, such as language."),
    ] = ""
    decide: Annotated[
        str, Option(help="Operating point, such as 'spam>=0.3'; the most likely label by default.")
    ] = ""
    tolerance: Annotated[
        float | None, Option(help="For numbers, and for --risk score: differences up to this do not count.")
    ] = None
    delta: Annotated[float, Option(help="The probability that a verdict is wrong.")] = 0.05
    stop_early: Annotated[
        bool, Option("--stop-early", help="Examine rows in random order until there is a verdict.")
    ] = False
    finite: Annotated[
        bool,
        Option(
            "--finite", help="With --stop-early: the claim is about these rows, not about others like them."
        ),
    ] = False
    seed: Annotated[int, Option(help="Seed of the random order.")] = 0

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `certify`."""
        return asdict(self) | {"guarantee": self.bounds()}

    @property
    def category(self) -> str | None:
        """The column of groups, if they are not classes."""
        return self.by if self.by not in ("", "class") else None

    def bounds(self) -> dict[str, float]:
        """By risk."""
        parts = [part.rpartition("=") for part in self.guarantee.split(",")]
        try:
            bounds = {name.strip() or self.risk: float(value) for name, _, value in parts}
        except ValueError:
            raise BadOption(
                f"--guarantee {self.guarantee}: expected a number such as 0.02, or RISK=0.02,..."
            ) from None
        if len(bounds) < len(parts):
            raise BadOption(f"--guarantee {self.guarantee} names a risk twice; leave one out.")
        return bounds

    def needs_labels(self) -> bool:
        from offramp.guarantees.losses import LOSSES

        return any(LOSSES[risk].needs_labels for risk in self.bounds() if risk in LOSSES)

    @property
    def point(self) -> "OperatingPoint":
        from offramp.guarantees.operating_point import OperatingPoint

        return OperatingPoint.parse(self.decide)


@dataclass(frozen=True)
class RowOptions:
    """How to read the rows of the files."""

    text: TextOption = None
    text_pair: TextPairOption = None
    label: Annotated[
        str | None, Option(help="Column of the correct labels, for the risks that need them.")
    ] = None
    labels: Annotated[
        str | None, Option(help="For files: all labels, such as ham,spam, if one of them may lack some.")
    ] = None
    column: Annotated[
        str | None, Option(help="For files: column of the predictions; guessed from its name by default.")
    ] = None
    id: Annotated[
        str | None,
        Option(help="For files: column to join them by; by default id, or else the order of rows."),
    ] = None

    def check_for_models(self) -> None:
        for name in ("labels", "column", "id"):
            if getattr(self, name) is not None:
                raise BadOption(f"--{name} is for two files of predictions; leave it out.")


def certify(
    old: Annotated[str, Argument(help=SIDE_HELP)],
    new: Annotated[str, Argument(help="The same, for what should replace it.")],
    claim: ClaimOptions,
    columns: RowOptions,
    runtime: RuntimeOptions,
    texts: Annotated[
        Path | None, Option(help="For models and servers: a txt, csv, tsv, jsonl or parquet file of texts.")
    ] = None,
    page: Annotated[Path | None, Option(help="Write an HTML page here.")] = None,
    badge: Annotated[Path | None, Option(help="Write a Markdown badge here.")] = None,
) -> Result:
    """Prove that NEW may replace OLD: that at most so much changes.

    Compares two files of predictions (columns label, or score, or probability_LABEL; joined by id or by order), or
    two models or servers on the texts of a file. Prints the verdict, the observed rate with its interval, the
    smallest bound that could be proven, how many more rows a verdict would need, and where the two differ.

    The exit code is 0 if everything is proven, 3 if not, and 2 if the rows cannot be compared.

    \b
    Examples:
        offramp certify old.csv new.csv --guarantee 0.02
        offramp certify my-model fast/model --texts logs.csv --stop-early
        offramp certify http://127.0.0.1:8000 http://127.0.0.1:8001 --texts logs.csv --decide "spam>=0.3"
    """
    from offramp.files import write_files
    from offramp.reports.certification import certification_badge, certification_page, certification_text

    with bad_input():
        for flag, out in {"--page": page, "--badge": badge}.items():
            if out is not None:
                check_writable(out, flag)
        if texts is None:
            made = certify_files(Path(old), Path(new), claim, columns)
        else:
            columns.check_for_models()
            made = certify_models(old, new, claim, columns, runtime, texts)
    if page is not None:
        write_files({page: certification_page(made) + "\n"})
    if badge is not None:
        write_files({badge: certification_badge(made) + "\n"})
    return Result(made.to_json(), certification_text(made), 0 if made.proven else NOT_PROVEN)


@contextmanager
def bad_input() -> Iterator[None]:
    """Rows and options that cannot be compared have an exit code of their own."""
    try:
        yield
    except (BadData, BadOption, CannotLoad, Incompatible, UnknownName) as error:
        raise BadInput(str(error)) from error


def certify_files(old: Path, new: Path, claim: ClaimOptions, columns: RowOptions) -> "Certification":
    from offramp.data.predictions import Columns, read_pair
    from offramp.guarantees.certify import certify as run

    if not all(path.suffix.lower() in FILES for path in (old, new)):
        raise BadOption(
            f"{old} and {new}: expected two files of predictions ({', '.join(FILES)}); models need --texts FILE."
        )
    if claim.needs_labels() and columns.label is None:
        raise BadOption(NO_LABELS)
    thresholds = [name for name, value in claim.point.thresholds.items() if value is not None]
    compares_scores = "score" in claim.bounds()
    pair = read_pair(
        old,
        new,
        Columns(
            columns.column,
            columns.id,
            columns.text,
            columns.text_pair,
            columns.label,
            scores=tuple(thresholds) if thresholds or compares_scores else None,
            numbers=claim.tolerance is not None,
            category=claim.category,
        ),
        split_names(columns.labels) or (),
    )
    return run(
        pair.old,
        pair.new,
        **claim.arguments(),
        label_names=pair.label_names,
        labels=pair.labels,
        texts=pair.texts,
        categories=pair.categories,
        names=names_of(str(old), str(new)),
    )


def names_of(old: str, new: str) -> tuple[str, str]:
    """What the two sides are called: files and folders without their path, if that tells them apart."""
    one, other = (Path(side).name if Path(side).exists() else side for side in (old, new))
    return (one, other) if one != other else (old, new)


def certify_models(
    old: str, new: str, claim: ClaimOptions, columns: RowOptions, runtime: RuntimeOptions, file: Path
) -> "Certification":
    from offramp.cli.predictors import load_predictor, match_labels
    from offramp.guarantees.certify import certify as run
    from offramp.guarantees.comparison import Predicted
    from offramp.guarantees.operating_point import OperatingPoint

    arguments = claim.arguments()
    rows = [*read_rows(file, columns.text, columns.text_pair)]
    texts = [row.text for row in rows]
    if not rows:
        raise BadData(f"{file}: the file is empty, expected texts")
    sides = [load_predictor(name, runtime) for name in (old, new)]
    order, problem, names = match_labels(*sides), sides[0].problem, sides[0].labels
    if problem.multi_label and claim.point.is_argmax:
        arguments["decide"] = OperatingPoint(dict.fromkeys(names, 0.5))

    def predicted(predictor: "Predictor", labels: list[int]) -> Predicted:
        def predict(numbers: "Array") -> "Array":
            scores = predictor.score([texts[number] for number in numbers])[:, labels]
            return scores if problem.has_classes else scores[:, 0]

        return Predicted(len(rows), predict)

    return run(
        predicted(sides[0], [*range(len(names))]),
        predicted(sides[1], order),
        **arguments,
        label_names=names if problem.has_classes else (),
        labels=correct_labels(rows, file, columns, sides[0]) if claim.needs_labels() else None,
        texts=texts,
        categories=read_column(rows, file, claim.category, "--by"),
        names=names_of(old, new),
        data=file.name,
    )


def correct_labels(rows: Sequence[Row], file: Path, columns: RowOptions, predictor: "Predictor") -> list[Any]:
    cells = read_labels(rows, file, columns.text, columns.text_pair, columns.label)
    if cells is None:
        raise BadOption(NO_LABELS)
    problem = predictor.problem
    if problem.has_classes and not problem.multi_label:
        return cells
    try:
        if not problem.has_classes:
            return [float(cell) for cell in cells]
        return [[int(name in cell) for name in predictor.labels] for cell in cells]
    except (TypeError, ValueError):
        raise BadLabels(f"{file}: expected as labels {problem.expected(len(predictor.labels))}") from None
