"""retrofit(): from a fine-tuned classifier and texts without labels to a faster model with a certificate.

The steps; an interrupted run resumes at the one where it stopped:

1. the texts are split, and about half of them train the exits (`text_split.py`, `offramp.training`);
2. the model is exported, in one precision or in both (`offramp.onnx_export`);
3. the predictions of the original model on the others are the reference (`original.py`);
4. a policy is calibrated for each, and the faster is kept (`offramp.measuring`);
5. it is compared with the original on texts that nothing was chosen on (`offramp.measuring.speed`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import TrainerCallback

from offramp.errors import NoSafeThreshold, OutputExists
from offramp.files import read_json, write_files
from offramp.folder.manifest import PORTABLE
from offramp.guarantees.attempts import Attempt, subject_of
from offramp.inference.texts import Text
from offramp.measuring import Guarantee
from offramp.model_info import ModelInfo
from offramp.reports.results import RetrofitResults
from offramp.retrofits.arguments import WORK, Arguments, Log, check_arguments
from offramp.retrofits.choice import choose
from offramp.retrofits.exits import Exits
from offramp.retrofits.text_split import describe_repeats
from offramp.retrofits.writing import compare, write
from offramp.row_hashes import hash_rows
from offramp.wording import plural

SETTINGS, LOCK = "settings.json", ".lock"
"""Files of the output folder."""


@dataclass(frozen=True)
class Retrofit:
    """A finished retrofit."""

    folder: Path
    """The folder of the faster model, for `Classifier.from_pretrained`."""
    results: RetrofitResults
    portable: Path | None
    """The folder for other libraries and languages, if the runtime is ONNX and the rule can be part of a graph."""

    def __str__(self) -> str:
        return f"{self.results.table()}\n\n" + "\n".join(self.results.verdict())

    def to_json(self) -> dict[str, Any]:
        return {
            "model": str(self.folder),
            "portable": None if self.portable is None else str(self.portable),
            **self.results.to_json(),
            "verdict": self.results.verdict(),
        }


def retrofit(
    model: str | PathLike[str],
    texts: Sequence[Text],
    out: str | PathLike[str],
    guarantee: Guarantee | float = 0.02,
    *,
    labels: Sequence[Any] | None = None,
    label_names: Sequence[str] | None = None,
    decide: str = "",
    groups: Sequence[Any] | None = None,
    learn_from: Sequence[Text] = (),
    categories: Sequence[Any] | None = None,
    tune: bool = False,
    epochs: float = 2,
    runtime: str | None = None,
    precision: str = "auto",
    rule: str | Sequence[str] | None = None,
    ladder: Sequence[float] = (),
    seed: int = 0,
    data: str = "",
    progress: bool = False,
    log: Log = lambda line: None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Retrofit:
    """Makes a fine-tuned classifier or tagger faster, and proves how many of its predictions change.

    Called again with the same arguments, it resumes where it was interrupted. With another guarantee, rule, precision
    or ladder it reuses the exits and their outputs; if it was finished, the new policy replaces the old one.

    Args:
        model: the folder or hub name of a `...ForSequenceClassification` or `...ForTokenClassification` of a
            supported family.
        texts: like those that the model will see, or pairs of texts; no labels are needed. For a guarantee about
            rankings, pairs of a query and a document, with about as many documents per query as in production.
        out: the folder to create; the faster model is in `out/model`, the report in `out/report`, and in
            `out/portable` the model for other libraries, if it runs in ONNX Runtime.
        guarantee: the largest share of predictions that may differ from the original's, with 95% confidence; or
            `Guarantee(0.005, risk="accuracy_drop")` where there are labels;
            `Guarantee(0.05, risk="overlap", top_k=10)` for a cross-encoder that ranks documents;
            `Guarantee(0.01, risk="missed")` for a tagger, about words that are no longer in any span.
        labels: those of the texts, by name, or as numbers in the order of the model's outputs; to report scores, and
            for guarantees about accuracy. Nothing is trained on them.
        label_names: names for the outputs of a model that has none.
        decide: the operating point, such as "jailbreak>=0.7" or, for several labels, "toxic>=0.5,insult>=0.8"; it is
            stored with the model, and the guarantee is then about these decisions. By default the most likely label.
        groups: the conversation, customer or other source of each text, if texts of one source are alike: they stay
            together in the split, and count as one text where distinct texts must prove the guarantee.
        categories: the language or other category of each text, for a guarantee within each, which names it:
            `Guarantee(0.02, by="language")`.
        learn_from: further texts that the exits learn from and that nothing is calibrated or tested on, such as those
            that the model was fine-tuned on.
        tune: train the backbone too, with the original as teacher, instead of the exits alone.
        epochs: of tuning.
        runtime: "onnx" or "torch"; by default ONNX Runtime if it is installed.
        precision: "fp32", "int8" (ONNX only), or "auto": calibrate and time both and keep the faster.
        rule: a rule or several to choose from; by default those of `calibrate`.
        ladder: larger bounds, for policies that a server uses under load; `out/rung-1.json` is the first of them.
        seed: of training. The split of the texts depends on the texts alone.
        data: the name of the texts in reports.
        progress: show progress bars.
        log: called with a line for each step.
        callbacks: transformers' TrainerCallbacks.
    """
    args = check_arguments(
        model,
        texts,
        out,
        guarantee,
        labels=labels,
        label_names=label_names,
        decide=decide,
        groups=groups,
        learn_from=learn_from,
        categories=categories,
        tune=epochs if tune else 0,
        runtime=runtime,
        precision=precision,
        rule=rule,
        ladder=ladder,
        seed=seed,
        data=data,
        progress=progress,
        log=log,
        callbacks=callbacks,
    )
    model_folder, portable = args.home / "model", args.home / PORTABLE
    with open_output(args.home, args.settings):
        finished = model_folder.exists()
        if not finished or not has_policy_asked_for(model_folder, args):
            run_steps(args, finished)
        results = RetrofitResults.load(model_folder)
    return Retrofit(model_folder, results, portable if portable.exists() else None)


def has_policy_asked_for(model: Path, args: Arguments) -> bool:
    """Whether a finished retrofit was asked for the same policy, and its model still has it: `offramp calibrate` may
    have replaced it, and a certificate that was edited is not one."""
    results, info = RetrofitResults.load(model), ModelInfo.read(model, replaces_policy=True)
    proof = None if info.policy is None else info.policy.certificate
    if proof is None or results.asked != args.asked:
        return False
    # the conditions in a folder also name its weights
    proof = replace(proof, conditions=results.certificate.conditions)
    chosen = results.policy, results.certificate, results.certificate.decision
    return (str(info.policy), proof, str(info.decide)) == chosen


def run_steps(args: Arguments, finished: bool) -> None:
    """All steps, or if the retrofit is finished with another policy, those that a policy takes."""
    if finished:
        check_work(args.home)
        args.log(f"{args.home} is finished, with another policy; the exits and their outputs are reused")
    attempt = attempt_of(args)
    for line in [*attempt.describe(), *describe_repeats(args.split), describe_sizes(args)]:
        args.log(line)
    exits = Exits(args)
    exits.check_groups()
    exits.train()
    variants = [exits.variant(precision) for precision in args.precisions]
    try:
        with attempt.paid() as spent:
            choice = choose(exits, variants, spent)
    except NoSafeThreshold:
        if finished:
            args.log(f"{args.home} keeps its policy; `offramp info {args.home}` shows it")
        raise
    results, changes = compare(exits, choice)
    write(exits, choice, results, changes)


def attempt_of(args: Arguments) -> Attempt:
    """The attempt that this retrofit makes. The same texts in another folder or order are not new texts."""
    settings = {**args.settings, **args.asked}
    subject = subject_of(hash_rows(args.texts), settings["model"])
    others = {name: settings[name] for name in settings if name not in ("model", "texts", "label_names")}
    return Attempt(subject, others, args.target.delta, args.home)


def describe_sizes(args: Arguments) -> str:
    learn, fit, calibration, test = args.split.sizes().values()
    return (
        f"{learn} {plural(args.split.unit)} to learn from, {fit} to fit a rule on, "
        f"{calibration} to calibrate on and {test} to test on"
    )


@contextmanager
def open_output(home: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Create the output folder, or check that it holds the same retrofit, and keep others out of it.

    The settings are those that the exits and their outputs depend on, not what a policy is calibrated for.
    """
    if home.exists() and not home.is_dir():
        raise OutputExists(f"{home} is a file; choose another folder.")
    files = (file for file in home.rglob("*") if file.is_file() and file.name != LOCK)
    if not (home / SETTINGS).exists() and any(files):
        raise OutputExists(f"{home} is not empty; choose another folder.")
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputExists(
            f"another retrofit is running in {home}; wait until it is done, or choose another folder."
        ) from None
    try:
        check_settings(home, settings)
        yield
    finally:
        lock.release()


def check_settings(home: Path, settings: Mapping[str, Any]) -> None:
    file = home / SETTINGS
    if file.exists():
        stored = read_json(file)
        changed = [name for name, value in settings.items() if stored.get(name) != value]
        if changed:
            raise OutputExists(
                f"{home} contains a different retrofit (other {', '.join(changed)}); choose another folder, or "
                "delete it."
            )
    write_files({file: json.dumps(settings, indent=1)})


def check_work(home: Path) -> None:
    """Another policy for a finished retrofit needs what its exits predicted."""
    if not (home / WORK).exists():
        raise OutputExists(
            f"{home} has another policy than this command asks for, and its folder {WORK}, from which it could be "
            "calibrated again, was deleted; retrofit into another folder, or trace new texts and use "
            "`offramp calibrate`."
        )
