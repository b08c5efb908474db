"""The steps of a retrofit, in order. Each leaves a file or folder in `work`, which a later run reuses."""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from datasets import Dataset
from transformers import TrainerCallback, set_seed

from offramp.data import Task
from offramp.data.checks import has_default_names
from offramp.data.files import ColumnMap, LoadedSplit, RawTable, text_columns
from offramp.errors import NoSafeThreshold
from offramp.files import atomic_file, atomic_folder, write_files
from offramp.folder import ModelInfo, load_model, megabytes
from offramp.folder.folder import REFERENCE
from offramp.inference import Classifier
from offramp.inference.classifier import NEVER
from offramp.inference.collect import collect
from offramp.measuring import Guarantee
from offramp.measuring.calibrate import Calibration, find_policy
from offramp.models.backbones import backbone_for
from offramp.models.exit_model import ExitModel
from offramp.models.heads import HeadConfig
from offramp.policy import Policy
from offramp.problems import DEFAULT_METRICS, REGRESSION, Array
from offramp.reports import report
from offramp.reports.card import RETROFIT
from offramp.reports.stored_policy import store_policy
from offramp.retrofits.comparison import compare_speed, interval, measure_contender
from offramp.retrofits.original import Original, is_bit_equal
from offramp.retrofits.text_split import TextSet, TextSplit
from offramp.retrofits.verdict import verdict
from offramp.trace import Trace
from offramp.training import default_arguments, train
from offramp.training.recipes import frozen, mixed

ORIGINAL, EXITS = "transformers", "offramp"
SAME_BITS = 256
"""Texts on which full depth is compared with the original bit by bit."""

Log = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Variant:
    """The model with exits in one precision."""

    precision: str
    folder: Path
    trace: Trace
    """On the calibration texts, with the original's predictions as reference."""


@dataclass(frozen=True)
class Calibrated:
    variant: Variant
    found: Calibration

    @property
    def policy(self) -> Policy:
        return self.found.policy


@dataclass(frozen=True)
class Steps:
    """The steps of one retrofit; intermediate files are in `work`."""

    work: Path
    original: Original
    split: TextSplit
    data: str
    seed: int
    progress: bool
    log: Log
    callbacks: Sequence[TrainerCallback]

    def train_exits(self, label_names: Sequence[str] | None, tune: bool, epochs: float) -> Path:
        """The folder of the model with exits, in PyTorch."""
        self.log("training the exits" + (" and the backbone" if tune else "; the backbone stays as it is"))
        set_seed(self.seed)
        head = HeadConfig(pooling="pair") if self.has_pairs() else None
        model = ExitModel.from_encoder(self.original.model, head=head)
        model.config.name_or_path = self.original.name
        if label_names:
            model.config.rename_labels(label_names)
        elif model.config.problem_type != REGRESSION and has_default_names(model.config.label_names):
            warnings.warn(
                f"the model has no label names, so predictions are called {', '.join(model.config.label_names)}; "
                "name them with label_names=...",
                stacklevel=3,
            )
        arguments = default_arguments(
            self.work / "training",
            num_train_epochs=epochs,
            seed=self.seed,
            eval_strategy="no",
            load_best_model_at_end=False,
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
        )
        done = train(
            model,
            unlabelled_task(self.split.learn, model),
            mixed(fine_tune=False) if tune else frozen(),
            arguments,
            tokenizer=self.original.tokenizer,
            max_length=self.original.max_length,
            callbacks=self.callbacks,
            progress=self.progress,
        )
        return done.folder

    def has_pairs(self) -> bool:
        """Whether the texts are pairs and their tokens have types, so that heads can read the two texts apart."""
        types = self.original.tokenizer("a", "b").get("token_type_ids", [])
        reads_types = backbone_for(self.original.model.config.model_type).has_token_types
        return isinstance(self.split.learn.texts[0], tuple) and reads_types and 1 in types

    def variant(self, exits: Path, runtime: str, precision: str) -> Variant:
        """The model in one precision, and its trace."""
        folder = exits
        if runtime == "onnx":
            folder = self.work / precision
            if not folder.exists():
                from offramp.onnx_export import export

                self.log(f"exporting in {precision}")
                export(exits, folder, precision, texts=self.split.learn.texts)
        return Variant(precision, folder, self.trace(folder, precision, "calibration"))

    def trace(self, folder: Path, name: str, part: str) -> Trace:
        """The logits of every exit, with the original's logits as reference."""
        file = self.work / f"{part}-{name}.trace"
        if not file.exists():
            rows: TextSet = getattr(self.split, part)
            self.log(f"running every exit on the {part} texts in {name}")
            classifier = Classifier.from_pretrained(folder, NEVER)
            found = collect(
                classifier,
                Dataset.from_dict(rows.columns()),
                metrics=DEFAULT_METRICS[classifier.runtime.problem_type],
                data=self.data,
                progress=self.progress,
            )
            # a text may also be among those to learn from as often as texts to come repeat them: the split is random
            found = replace(found, trained_on=None)
            replace(found, reference=self.reference(part), reference_name=self.original.name).save(file)
        return Trace.load(file)

    def reference(self, part: str) -> Array:
        """The original's logits."""
        file = self.work / f"{part}.npy"
        if not file.exists():
            self.log(f"running the original model on the {part} texts")
            logits = self.original.logits(getattr(self.split, part).texts, self.progress)
            with atomic_file(file) as draft:
                np.save(draft, logits)
        found: Array = np.load(file)
        return found

    def calibrate(
        self, variants: Sequence[Variant], target: Guarantee, rules: Sequence[str] | None, attempts: int
    ) -> list[Calibrated]:
        """A policy for each variant that has a safe one; the guarantee allows for the choice among them, and for
        earlier attempts."""

        def calibrate(variant: Variant) -> Calibration:
            return find_policy(variant.trace, rules, target, seed=self.seed, choices=choices)

        choices = len(variants) * attempts
        return [Calibrated(*each) for each in self.safe(variants, calibrate)]

    def safe(
        self, variants: Sequence[Variant], calibrate: Callable[[Variant], Result]
    ) -> list[tuple[Variant, Result]]:
        """The variants for which something can be proven; if there is none, `NoSafeThreshold`."""
        self.log("calibrating")
        found, refusals = [], {}
        for each in variants:
            try:
                found.append((each, calibrate(each)))
            except NoSafeThreshold as refusal:
                refusals[each.precision] = refusal
        if not found:
            raise next(iter(refusals.values()))
        for precision, reason in refusals.items():
            self.log(f"{precision}: {reason}")
        return found

    def choose(self, calibrated: Sequence[Calibrated], tried: int) -> tuple[Calibrated, str]:
        """The faster one on calibration texts, and the reason in words."""
        best = calibrated[0]
        if len(calibrated) == 1:
            return best, f"the only precision {'tried' if tried == 1 else 'with a safe policy'}"
        self.log("timing " + " and ".join(each.variant.precision for each in calibrated))
        speeds = compare_speed(
            {each.variant.precision: predictor(each.variant.folder, each.policy) for each in calibrated},
            self.split.calibration.texts,
        )
        best, other = sorted(calibrated, key=lambda each: speeds[each.variant.precision].cost)
        winner, loser = speeds[best.variant.precision], speeds[other.variant.precision]
        return best, (
            f"{best.variant.precision} is {loser.one_text / winner.one_text:.2f} times as fast as "
            f"{other.variant.precision} for one text and {loser.in_batches / winner.in_batches:.2f} times in "
            "batches, under the same guarantee"
        )

    def test(
        self,
        precisions: Sequence[str],
        runtime: str,
        target: Guarantee,
        chosen: Calibrated,
        exits: Path,
        untouched: bool,
    ) -> dict[str, Any]:
        """The original, its exports without exits and the chosen policy, on texts that nothing was chosen on."""
        trace, policy = self.trace(chosen.variant.folder, chosen.variant.precision, "test"), chosen.policy
        plain = {each: self.plain(chosen.variant.folder, runtime, each) for each in precisions}
        same_bits = None
        if untouched and chosen.variant.precision == "fp32":
            same_bits = is_bit_equal(self.original, load_model(exits)[0], self.split.test.texts[:SAME_BITS])
        contenders: dict[str, tuple[Any, Trace, Policy | None]] = {
            ORIGINAL: (self.original.logits, trace, None),
            **{
                f"{each}, full depth": (
                    predictor(folder, NEVER),
                    self.trace(folder, folder.name, "test"),
                    NEVER,
                )
                for each, folder in plain.items()
            },
            EXITS: (predictor(chosen.variant.folder, policy), trace, policy),
        }
        self.log("timing the original and the retrofitted model")
        speeds = compare_speed({name: each[0] for name, each in contenders.items()}, self.split.test.texts)
        rows = [
            measure_contender(name, of, under, target.tolerance, speeds[name], speeds[ORIGINAL])
            for name, (_, of, under) in contenders.items()
        ]
        decision = policy.decide(trace.logits, trace.gates, trace.layers, trace.problem_type)
        certificate, cut = policy.certificate, chosen.found.static_cut
        reference = self.reference_model(chosen.variant, runtime, tuned=not untouched)
        return {
            "date": str(date.today()),
            "original": self.original.name,
            "data": self.data,
            "texts": self.split.sizes(),
            "precision": chosen.variant.precision,
            "policy": str(policy),
            "static_cut": cut and cut.policy.threshold,
            "certificate": None if certificate is None else certificate.to_json(),
            "layers": list(trace.layers),
            "exits": (np.bincount(decision.exits, minlength=len(trace.layers)) / len(trace)).tolist(),
            "comparison": [asdict(row) for row in rows],
            "changed_interval": interval(rows[-1].changed, len(trace)),
            "full_depth_bit_equal": same_bits,
            "megabytes": {
                "offramp": megabytes(chosen.variant.folder),
                "reference": 0 if reference is None else megabytes(reference),
                "original": original_megabytes(self.original),
            },
        }

    def finish(self, home: Path, chosen: Calibrated, results: Mapping[str, Any]) -> None:
        """Writes the report, then the model folder, which is complete once it exists."""
        trace = self.trace(chosen.variant.folder, chosen.variant.precision, "test")
        if trace.problem_type == REGRESSION and trace.labels is None:
            # the curves then show the correlation with the original
            trace = replace(trace, labels=trace.reference_predictions())
        lines = verdict(results)
        report({"test texts": trace}, lead="\n".join(lines)).save(home / "report")
        with atomic_folder(home / "model") as draft:
            self.write_model(draft, chosen.variant, {**results, "verdict": lines})
            store_policy(draft, chosen.policy, chosen.found.trace)

    def write_model(self, folder: Path, variant: Variant, results: Mapping[str, Any]) -> None:
        """The chosen variant with the results, and the original where full depth is not the same."""
        shutil.copytree(variant.folder, folder, dirs_exist_ok=True)
        if reference := self.reference_model(variant, results["runtime"], results["tuned"]):
            shutil.copytree(reference, folder / REFERENCE)
        write_files({folder / RETROFIT: json.dumps(results, indent=1)})

    def reference_model(self, variant: Variant, runtime: str, tuned: bool) -> Path | None:
        """The folder of the original for the server's audit, where full depth is not the same."""
        return self.plain(variant.folder, runtime, "fp32") if tuned or variant.precision != "fp32" else None

    def plain(self, exits: Path, runtime: str, precision: str) -> Path:
        """The original with its last exit alone, in one graph: the fastest way to run all of it."""
        folder = self.work / f"plain-{precision}"
        if not folder.exists():
            layers = self.original.model.config.num_hidden_layers
            model = ExitModel.from_encoder(self.original.model, exits=[layers])
            model.config.rename_labels(ModelInfo.read(exits).labels)
            if runtime == "onnx":
                from offramp.onnx_export import export

                self.log(f"exporting the original in {precision}")
                export(model, folder, precision, self.original.tokenizer, texts=self.split.learn.texts)
            else:
                with atomic_folder(folder) as draft:
                    model.save_pretrained(draft)
                    self.original.tokenizer.save_pretrained(draft)
        return folder


def unlabelled_task(part: TextSet, model: ExitModel) -> Task:
    cells = text_columns(part.texts)
    columns = ColumnMap("text", "text_pair" if "text_pair" in cells else None)
    problem_type = str(model.config.problem_type)
    labels = None if problem_type == REGRESSION else tuple(model.config.label_names)
    source = LoadedSplit(columns, RawTable("texts", cells, range(1, len(part) + 1), unit="row"))
    return Task("texts", labels, DEFAULT_METRICS[problem_type], {"train": source}, problem_type)


def predictor(folder: Path, policy: Policy) -> Any:
    return Classifier.from_pretrained(folder, policy).predict


def original_megabytes(original: Original) -> float:
    return round(sum(p.numel() * p.element_size() for p in original.model.parameters()) / 1e6, 1)
