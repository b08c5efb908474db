"""The steps of a retrofit, in order. Each leaves a file or folder in `work`, which a later run reuses."""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import TrainerCallback, set_seed

from offramp.data.checks import has_default_names
from offramp.errors import Incompatible, NoSafeThreshold
from offramp.files import SCORES, atomic_file, atomic_folder, replace_folder, replaced_folder, write_files
from offramp.folder import is_exported, load_model, megabytes
from offramp.folder.folder import REFERENCE
from offramp.folder.manifest import GRAPH
from offramp.guarantees.certificate import BY_CLASS, BY_EXIT
from offramp.inference import Classifier
from offramp.inference.collect import collect, words_of
from offramp.inference.reranker import Reranker
from offramp.inference.runner import NEVER, Runner
from offramp.inference.spans import Words, find_spans
from offramp.inference.tagger import Tagger
from offramp.inference.texts import BatchTokenizer
from offramp.inference.windows import WindowTokenizer
from offramp.measuring import Guarantee
from offramp.measuring.calibrate import calibrate
from offramp.measuring.changes import Changes, find_changes
from offramp.measuring.comparison import (
    BATCH,
    Predict,
    Speed,
    compare_speed,
    describe_machine,
    measure_contender,
)
from offramp.measuring.guarantee import parts_of
from offramp.measuring.paying_exits import ExitCost, paying_exits
from offramp.measuring.targets import Candidate
from offramp.model_info import ModelInfo
from offramp.models.backbones import backbone_for
from offramp.models.config import names_in_order
from offramp.models.exit_model import ExitModel
from offramp.models.heads import HeadConfig
from offramp.policy import Policy
from offramp.problems import Array
from offramp.reports import report
from offramp.reports.results import FULL_DEPTH, RETROFIT, Megabytes, RetrofitResults, Unseen, full_depth_name
from offramp.reports.stored_policy import store_policy
from offramp.retrofits.original import Original, is_bit_equal
from offramp.retrofits.text_split import TextSet, TextSplit, check_parts
from offramp.rules.agreement import Agreement
from offramp.trace import Trace
from offramp.training import train
from offramp.training.recipes import frozen, mixed

PORTABLE = "portable"
"""The folder for other libraries, beside that of the model."""
TRAINED = Path("training", "model")
"""The model with exits, in the folder of intermediate files."""
ORIGINAL, OFFRAMP = "transformers", "offramp"
EXITS = "exits"
AS_FAST = 1.05
"""A simpler policy is kept if it costs at most this many times what the fastest one costs."""
HEAD_RATE, TAG_RATE = 1e-3, 3e-3
"""Learning rates of heads on stored features; those of taggers start as the final classifier."""
SAME_BITS = 256
"""Texts on which full depth is compared with the original bit by bit."""
TIMED_QUERIES = 10
"""The number of queries that are timed."""
EXIT_SECONDS, CHOICE_SECONDS, TEST_SECONDS = 3, 8, 16
"""The most time that is spent on timing: what exits cost, in each precision; for the choice of a policy; and for the
comparison."""
FEWEST_TO_TELL = 200
"""Of fewer texts, nothing is concluded about which exits pay."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """The model with exits in one precision."""

    precision: str
    folder: Path
    trace: Trace
    """On the calibration texts, with the original's predictions as reference."""


@dataclass(frozen=True)
class Calibrated:
    """A variant with a policy that is proven for it."""

    variant: Variant
    candidate: Candidate

    @property
    def policy(self) -> Policy:
        return self.candidate.policy

    @property
    def fixed_layer(self) -> int | None:
        """The layer at which all texts stop, if the policy is such a layer."""
        return int(self.candidate.mean_layer) if self.policy.rule.reads == "layer" else None

    @property
    def kind(self) -> str:
        """How it differs from others of this variant."""
        if self.fixed_layer is None:
            return EXITS
        full_depth = self.fixed_layer == self.variant.trace.layers[-1]
        return FULL_DEPTH if full_depth else f"layer {self.fixed_layer}"

    @property
    def name(self) -> str:
        return f"{self.variant.precision}, {self.kind}"


@dataclass(frozen=True)
class Steps:
    """The steps of one retrofit; intermediate files are in `work`."""

    work: Path
    original: Original
    split: TextSplit
    decide: str
    """The operating point."""
    categories: str
    """What the categories of texts are called, such as "language", if there are any."""
    data: str
    seed: int
    progress: bool
    log: Log
    callbacks: Sequence[TrainerCallback]

    def train_exits(self, label_names: Sequence[str] | None, tune: bool, epochs: float) -> Path:
        """The folder of the model with exits, in PyTorch."""
        if (self.work / TRAINED / SCORES).exists():  # written last
            return self.work / TRAINED
        self.log("training the exits" + (" and the backbone" if tune else "; the backbone stays as it is"))
        set_seed(self.seed)
        rate = TAG_RATE if self.tags else HEAD_RATE
        head = HeadConfig(pooling="pair") if self.has_pairs() else None
        model = ExitModel.from_encoder(self.original.model, head=head)
        model.config.name_or_path = self.original.name
        if label_names:
            model.config.rename_labels(label_names)
        elif model.config.problem.has_classes and has_default_names(model.config.label_names):
            warnings.warn(
                f"the model has no label names, so predictions are called {', '.join(model.config.label_names)}; "
                "name them with label_names=...",
                stacklevel=3,
            )
        model.config.decide = self.decide
        arguments = {
            "output_dir": (self.work / TRAINED).parent,
            "seed": self.seed,
            "eval_strategy": "no",
            "load_best_model_at_end": False,
            "report_to": "none",
            "logging_strategy": "no",
            "disable_tqdm": True,
            **({"num_train_epochs": epochs} if tune else {}),
        }
        done = train(
            model,
            Dataset.from_dict(self.split.learn.columns()),
            mixed(fine_tune=False, head_rate=rate) if tune else frozen(rate=rate),
            arguments,
            tokenizer=self.original.tokenizer,
            max_length=self.original.max_length,
            callbacks=self.callbacks,
            progress=self.progress,
        )
        return done.folder

    def check_groups(self, target: Guarantee, delta: float, label_names: Sequence[str] | None) -> None:
        """If groups depend on the original's predictions, too few texts in one are an error before any training."""
        if target.by != BY_CLASS and all(loss.among is None for loss in target.losses.values()):
            return
        rows, logits = self.split.calibration, self.reference("calibration")
        trace = Trace(
            logits[:, None],
            (self.original.model.config.num_hidden_layers,),
            labels=rows.labels,
            lengths=np.ones(len(rows)),
            ids=np.arange(len(rows)),
            decide=self.decide,
            reference=logits,
            texts=rows.groups,
            trained_on=np.isin(rows.groups, self.split.before("calibration")),
            problem=self.original.problem,
            label_names=tuple(label_names or names_in_order(self.original.model.config)),
        )
        trace = self.categorized(trace, "calibration").decided()
        target = replace(target, by="" if target.by == BY_EXIT else target.by)
        check_parts(parts_of(trace, target), target, delta, len(rows) / sum(self.split.sizes().values()))

    def has_pairs(self) -> bool:
        """Whether the texts are pairs and their tokens have types, so that heads can read the two texts apart."""
        types = self.original.tokenizer("a", "b").get("token_type_ids", [])
        reads_types = backbone_for(self.original.model.config.model_type).has_token_types
        return isinstance(self.split.learn.texts[0], tuple) and reads_types and 1 in types

    def variant(self, exits: Path, runtime: str, precision: str, target: Guarantee, tuned: bool) -> Variant:
        """The model in one precision, and its trace."""
        folder = exits
        if runtime == "onnx":
            folder, every = self.work / precision, self.work / f"{precision}-every-exit"
            if not folder.exists():
                from offramp.onnx_export import export

                if not every.exists():
                    self.log(f"exporting in {precision}")
                    export(exits, every, precision, texts=self.split.learn.texts)
                self.leave_out_exits(every, folder, precision, target, tuned)
        return Variant(precision, folder, self.trace(folder, precision, "calibration"))

    def leave_out_exits(
        self, every: Path, folder: Path, precision: str, target: Guarantee, tuned: bool
    ) -> None:
        """Writes the model without the exits that cost more time than they save on the texts to fit a rule on."""
        from offramp.onnx_export.fewer_exits import leave_out_exits

        layers = ModelInfo.read(every).exits
        kept: Sequence[int] = range(len(layers))
        # without exits, and without a rule, a model that was not tuned is the original
        last = self.work / (f"{precision}-last-exit" if tuned else f"plain-{precision}")
        if not last.exists():
            leave_out_exits(every, last, kept[-1:])
        texts = self.unit == "text" and not self.tags
        if texts and len(kept) > 1 and len(self.split.fit) >= FEWEST_TO_TELL:
            trace = self.trace(every, every.name, "fit")
            bounds = [*target.epsilon.values()] if isinstance(target.epsilon, Mapping) else [target.epsilon]
            kept = paying_exits(trace, min(bounds), self.exit_costs(every, last), target.tolerance)
            if left_out := [layer for exit, layer in enumerate(layers) if exit not in kept]:
                self.log(
                    f"{precision}: exits at layers {', '.join(str(layers[exit]) for exit in kept)} stay; those at "
                    f"{', '.join(map(str, left_out))} would take more time than they save"
                )
        leave_out_exits(every, folder, kept)

    def exit_costs(self, every: Path, last: Path) -> list[ExitCost]:
        """What a layer and an exit cost, for one text and in batches, if no text exits early."""
        layers = ModelInfo.read(every).exits
        self.log(f"timing the exits in {every.name} for at most {EXIT_SECONDS} s")
        features = 7 if self.original.problem.has_classes else 5
        never_sure = Policy(Agreement(coefficients=((0.0,) * features,) * len(layers)), 0.9)
        speeds = self.compare_speed(
            {"every": self.predictor(every, never_sure), "last": self.predictor(last, NEVER)},
            self.split.learn,
            EXIT_SECONDS,
        )
        return [
            ExitCost(layer=bare / layers[-1], exit=max(0.0, whole - bare) / (len(layers) - 1))
            for whole, bare in zip(
                *((speeds[name].single, speeds[name].batch) for name in ("every", "last")), strict=True
            )
        ]

    def trace(self, folder: Path, name: str, part: str) -> Trace:
        """The logits of every exit, with the original's logits as reference."""
        file = self.work / f"{part}-{name}.trace"
        if not file.exists():
            rows: TextSet = getattr(self.split, part)
            self.log(f"running every exit on the {part} texts in {name}")
            runner = Runner.from_pretrained(folder, NEVER)
            found = collect(
                runner,
                Dataset.from_dict(rows.columns()),
                metrics=runner.runtime.info.problem.default_metrics,
                data=self.data,
                progress=self.progress,
            )
            found = replace(
                found,
                decide=self.decide,
                reference=self.reference(part, runner),
                reference_name=self.original.name,
                texts=rows.groups[found.text_numbers],
                trained_on=np.isin(rows.groups, self.split.before(part))[found.text_numbers],
            )
            if rows.by_query:
                found = found.grouped([text[0] for text in rows.texts])
            found.save(file)
        return self.categorized(Trace.load(file), part).decided()

    def categorized(self, trace: Trace, part: str) -> Trace:
        categories = getattr(self.split, part).categories
        return trace if categories is None else trace.categorized(self.categories, categories.tolist())

    def reference(self, part: str, runner: Runner | None = None) -> Array:
        """The original's logits, in the rows of a trace; those of a tagger's are known to the runner."""
        file = self.work / f"{part}.npy"
        if not file.exists():
            self.log(f"running the original model on the {part} texts")
            texts = getattr(self.split, part).texts
            if self.tags:
                assert runner is not None
                read = self.reader(texts)
                windows = [window for text in read for window in text.windows]
                every = np.concatenate(self.original.tag_logits(windows, self.progress))
                logits = every[
                    np.logical_or(*words_of(runner.engine, windows, read))
                ]  # as `collect` keeps them
            else:
                logits = self.original.logits(texts, self.progress)
            with atomic_file(file) as draft:
                np.save(draft, logits)
        found: Array = np.load(file)
        return found

    def calibrate(
        self,
        variants: Sequence[Variant],
        target: Guarantee,
        *,
        rules: Sequence[str] | None,
        choices: int,
        spent: float,
    ) -> list[Calibrated]:
        """A policy for each variant that has a safe one; further arguments as for `calibrate_variant`."""
        self.log("calibrating")
        calibrated: list[Calibrated] = []
        refusals = {}
        for variant in variants:
            try:
                calibrated += self.calibrate_variant(
                    variant, target, rules=rules, choices=choices, spent=spent
                )
            except NoSafeThreshold as refusal:
                refusals[variant.precision] = refusal
        if not calibrated:
            raise next(iter(refusals.values()))
        for precision, reason in refusals.items():
            self.log(f"{precision}: {reason}")
        return calibrated

    def calibrate_variant(
        self, variant: Variant, target: Guarantee, *, rules: Sequence[str] | None, choices: int, spent: float
    ) -> list[Calibrated]:
        """The best policy, and its rivals under the same guarantee: a fixed layer, and full depth.

        The guarantee allows for all `choices`, of variants and rungs; `spent` is the delta of earlier attempts.
        """
        calibration = calibrate(
            variant.trace,
            rules,
            target,
            fit_on=self.trace(variant.folder, variant.precision, "fit"),
            choices=choices,
            spent=spent,
            allow_training_rows=True,  # as often as texts to come repeat them: the split is random
        )
        best, *others = (Calibrated(variant, candidate) for candidate in calibration.reached)
        return [best, *(each for each in others if each.fixed_layer is not None)]

    def choose(self, calibrated: Sequence[Calibrated], tried: int) -> tuple[Calibrated, str]:
        """The fastest on calibration texts, and the reason in words; a fixed layer if that is as fast."""
        alone = f"the only precision {'tried' if tried == 1 else 'with a safe policy'}"
        if len(calibrated) == 1:
            return calibrated[0], alone
        self.log(f"timing {'; '.join(each.name for each in calibrated)}, for at most {CHOICE_SECONDS} s")
        speeds = self.compare_speed(
            {each.name: self.predictor(each.variant.folder, each.policy) for each in calibrated},
            self.split.calibration,
            CHOICE_SECONDS,
        )
        chosen, rival = choose_fastest(calibrated, speeds)
        if rival is None:
            return chosen, alone
        times = speeds[chosen.name].times_faster_than(speeds[rival.name])
        same_kind = chosen.kind == rival.kind
        what, than = (
            each.variant.precision if same_kind else f"{each.kind} in {each.variant.precision}"
            for each in (chosen, rival)
        )
        return chosen, (
            f"{what} is {times.single:.2f} times as fast as {than} for one {self.unit} and {times.batch:.2f} times "
            "in batches, under the same guarantee"
        )

    def compare_speed(
        self, contenders: Mapping[str, Predict], part: TextSet, seconds: float
    ) -> dict[str, Speed]:
        examples = part.examples[: TIMED_QUERIES if part.by_query else BATCH]
        return compare_speed(contenders, examples, seconds=seconds, progress=self.progress)

    def predictor(self, folder: Path, policy: Policy) -> Predict:
        if self.unit == "query":
            return Reranker.from_pretrained(folder, policy).rank_many
        if self.tags:
            tagger = Tagger.from_pretrained(folder, policy)
            compile_policy(tagger.runner, policy)
            return tagger.tag
        classifier = Classifier.from_pretrained(folder, policy)
        compile_policy(classifier.runner, policy)
        return classifier.predict

    def predict_by_original(self, examples: Sequence[Any]) -> Any:
        if self.tags:
            return self.original.tag_logits(
                [window for text in self.reader(examples) for window in text.windows]
            )
        if self.unit == "query":
            examples = [(query, document) for query, documents in examples for document in documents]
        return self.original.logits(examples)

    @property
    def tags(self) -> bool:
        return self.original.problem.of_tokens

    @cached_property
    def reader(self) -> WindowTokenizer:
        """Of a tagger."""
        return WindowTokenizer(BatchTokenizer(self.original.tokenizer, self.original.max_length))

    @property
    def unit(self) -> str:
        """What counts as one example."""
        return "query" if self.split.test.by_query else "text"

    def test(
        self,
        asked: Mapping[str, Any],
        runtime: str,
        target: Guarantee,
        chosen: Calibrated,
        exits: Path,
        tuned: bool,
        kept_because: str,
    ) -> tuple[RetrofitResults, Changes]:
        """The original, its exports without exits and the chosen policy, on texts that nothing was chosen on."""
        variant, policy = chosen.variant, chosen.policy
        trace = self.trace(variant.folder, variant.precision, "test")
        plain = {
            precision: self.plain(variant.folder, runtime, precision) for precision in asked["precisions"]
        }
        same_bits = None
        if not tuned and variant.precision == "fp32":
            same_bits = is_bit_equal(self.original, load_model(exits)[0], self.split.test.texts[:SAME_BITS])
        contenders: dict[str, tuple[Predict, Trace, Policy | None]] = {
            ORIGINAL: (self.predict_by_original, trace, None),
            **{
                full_depth_name(precision): (
                    self.predictor(folder, NEVER),
                    self.trace(folder, folder.name, "test"),
                    NEVER,
                )
                for precision, folder in plain.items()
            },
            OFFRAMP: (self.predictor(variant.folder, policy), trace, policy),
        }
        self.log(f"timing the original and the retrofitted model for at most {TEST_SECONDS} s")
        predictors = {name: predict for name, (predict, _, _) in contenders.items()}
        speeds = self.compare_speed(predictors, self.split.test, TEST_SECONDS)
        rows = [
            measure_contender(name, at, under, speeds[name], speeds[ORIGINAL], target)
            for name, (_, at, under) in contenders.items()
        ]
        decision = policy.decide_trace(trace, target.top_k)
        assert policy.certificate is not None
        changes = find_changes(
            trace, decision, self.split.test.rows, target.tolerance, target.top_k, self.spell(trace)
        )
        results = RetrofitResults(
            date=str(date.today()),
            original=self.original.name,
            data=self.data,
            unit=self.unit,
            examples=self.split.sizes(),
            runtime=runtime,
            precision=variant.precision,
            kept_because=kept_because,
            tuned=tuned,
            seed=self.seed,
            asked=asked,
            policy=str(policy),
            certificate=policy.certificate,
            fixed_layer=chosen.fixed_layer,
            layers=tuple(trace.layers),
            exits=exit_shares(trace.by_text(decision.exits), trace),
            comparison=tuple(rows),
            unseen=None
            if self.unit == "query"
            else measure_unseen(trace[trace.unseen()], policy, target.tolerance),
            full_depth_bit_equal=same_bits,
            changes=changes.groups,
            megabytes=self.megabytes(variant, runtime, tuned),
            machine=describe_machine(),
        )
        return results, changes

    def spell(self, trace: Trace) -> Callable[[int, Array], str]:
        """A function of a test text's number and the logits of its words: its spans, in words."""

        def spans(row: int, logits: Array) -> str:
            text = self.split.test.texts[row]
            assert isinstance(text, str)
            [read] = self.reader([text])
            words = Words(np.arange(len(read.words)), read.words.starts, read.words.ends)
            found = find_spans(text, words, logits, trace.scheme)
            return "; ".join(f"{span.label} {span.text}" for span in found) or "none"

        return spans

    def megabytes(self, variant: Variant, runtime: str, tuned: bool) -> Megabytes:
        reference = self.reference_model(variant, runtime, tuned)
        weights = sum(p.numel() * p.element_size() for p in self.original.model.parameters())
        return Megabytes(
            model=megabytes(variant.folder),
            reference=0 if reference is None else megabytes(reference),
            original=round(weights / 1e6, 1),
        )

    def finish(self, home: Path, chosen: Calibrated, results: RetrofitResults, changes: Changes) -> None:
        """Writes the report, then the model folders; all is complete once `model` exists."""
        self.report(home, chosen, results, changes)
        with replaced_folder(home / "model") as draft:
            self.write_model(draft, chosen.variant, results)
            store_policy(draft, chosen.policy, chosen.candidate.trace)
            portable = draft.parent / PORTABLE
            if results.runtime == "onnx":
                self.write_portable(draft, portable)
            replace_folder(home / PORTABLE, portable)

    def write_portable(self, model: Path, path: Path) -> None:
        """The model for other libraries, if its rule can be part of a graph, which also runs single texts here."""
        from offramp.onnx_export.portable import write_portable

        try:
            write_portable(model, path)
            (model / GRAPH).parent.mkdir()
            shutil.copyfile(path / GRAPH, model / GRAPH)
        except Incompatible as reason:
            self.log(f"no folder for other libraries: {reason}")

    def report(self, home: Path, chosen: Calibrated, results: RetrofitResults, changes: Changes) -> None:
        """Opens with the results; a study of rules on the test texts follows, where there are classes or labels."""
        variant, traces = chosen.variant, {}
        if self.unit == "text":
            trace = self.trace(variant.folder, variant.precision, "test")
            if not trace.problem.has_classes and trace.labels is None:
                # the curves then show the correlation with the original
                trace = replace(trace, labels=trace.reference_predictions())
            traces = {"Rules compared on the test texts": trace}
        report(traces, opening=results.blocks(changes), shipped=chosen.policy).save(home / "report")

    def write_model(self, folder: Path, variant: Variant, results: RetrofitResults) -> None:
        """The chosen variant with the results, and the original where full depth is not the same."""
        shutil.copytree(variant.folder, folder, dirs_exist_ok=True)
        if reference := self.reference_model(variant, results.runtime, results.tuned):
            shutil.copytree(reference, folder / REFERENCE)
        write_files({folder / RETROFIT: json.dumps(results.to_json(), indent=1)})

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
            model.config.decide = self.decide
            if runtime == "onnx":
                from offramp.onnx_export import export

                self.log(f"exporting the original in {precision}")
                export(model, folder, precision, self.original.tokenizer, texts=self.split.learn.texts)
            else:
                with atomic_folder(folder) as draft:
                    model.save_pretrained(draft)
                    self.original.tokenizer.save_pretrained(draft)
        return folder


def compile_policy(runner: Runner, policy: Policy) -> None:
    """Lets texts run through one graph, as they will in the finished model."""
    if runner.folder is not None and is_exported(runner.folder):
        from offramp.onnx_export.one_file import one_file

        with suppress(Incompatible):  # a rule that is not part of a graph
            runner.runtime.compile(one_file(runner.folder, policy).SerializeToString())  # type: ignore[attr-defined]


def choose_fastest(
    calibrated: Sequence[Calibrated], speeds: Mapping[str, Speed]
) -> tuple[Calibrated, Calibrated | None]:
    """The fastest, and its fastest rival of another kind; of those that are as fast, full depth or a fixed layer."""

    def cost(each: Calibrated) -> float:
        return speeds[each.name].cost

    least = min(map(cost, calibrated))
    as_fast = [each for each in calibrated if cost(each) <= AS_FAST * least]
    chosen = max(
        as_fast, key=lambda each: (-1 if each.fixed_layer is None else each.fixed_layer, -cost(each))
    )
    fixed, precision = chosen.fixed_layer is not None, chosen.variant.precision
    rivals = [each for each in calibrated if each.fixed_layer is None] if fixed else []
    rivals = rivals or [each for each in calibrated if each.variant.precision != precision]
    return chosen, min(rivals, key=cost, default=None)


def exit_shares(exits: Array, trace: Trace) -> tuple[float, ...]:
    """The share of texts that take each exit, the deepest of their windows'."""
    return tuple((np.bincount(exits, minlength=len(trace.layers)) / len(exits)).tolist())


def measure_unseen(trace: Trace, policy: Policy, tolerance: float | None) -> Unseen:
    decision = policy.decide_trace(trace)
    changed = trace.by_text(~trace.agrees(decision.logits, tolerance))
    return Unseen(len(changed), int(changed.sum()))
