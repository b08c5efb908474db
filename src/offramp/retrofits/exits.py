"""The model with exits: trained, in each precision, and its outputs. Files are kept in `work` for later runs."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import set_seed

from offramp.data.checks import has_default_names
from offramp.files import SCORES, atomic_file, atomic_folder
from offramp.guarantees.guarantee import BY_CLASS, BY_EXIT
from offramp.inference.collect import collect, words_of
from offramp.inference.runner import NEVER, Runner
from offramp.measuring.exit_table import fit_rule
from offramp.measuring.paying_exits import ExitCost, paying_exits
from offramp.measuring.proof import parts_of
from offramp.model_info import ModelInfo
from offramp.models.backbones import backbone_for
from offramp.models.config import names_in_order
from offramp.models.exit_model import ExitModel
from offramp.models.heads import HeadConfig
from offramp.policy import Policy
from offramp.problems import Array
from offramp.retrofits.arguments import Arguments
from offramp.retrofits.text_split import check_parts
from offramp.retrofits.timing import predictor, time_on
from offramp.rules.agreement import Agreement
from offramp.trace import Trace
from offramp.training import train
from offramp.training.recipes import frozen, mixed

HEAD_RATE, TAG_RATE = 1e-3, 3e-3
"""Learning rates of heads on stored features, of classifiers and of taggers, whose heads start as the last one."""
EXIT_SECONDS = 3
"""The most time that is spent on timing what exits cost, in each precision."""
FEWEST_TO_TELL = 200
"""The fewest texts to fit a rule on that tell which exits pay."""


@dataclass(frozen=True)
class Variant:
    """The model with exits in one precision."""

    precision: str
    folder: Path
    trace: Trace
    """On the calibration texts, with the original's predictions as reference."""


@dataclass(frozen=True)
class Exits:
    """Trains the exits of a retrofit and runs them."""

    args: Arguments

    @property
    def trained(self) -> Path:
        """The folder of the model with exits, in PyTorch."""
        return self.args.work / "training" / "model"

    def check_groups(self) -> None:
        """If groups depend on the original's predictions, too few texts in one are an error before any training."""
        args, target = self.args, self.args.target
        if target.by != BY_CLASS and all(loss.among is None for loss in target.losses.values()):
            return
        rows, logits = args.split.calibration, self.reference("calibration")
        trace = Trace(
            logits[:, None],
            (args.original.model.config.num_hidden_layers,),
            labels=rows.labels,
            lengths=np.ones(len(rows)),
            ids=np.arange(len(rows)),
            decide=args.decide,
            reference=logits,
            texts=rows.groups,
            trained_on=np.isin(rows.groups, args.split.before("calibration")),
            problem=args.original.problem,
            label_names=tuple(args.label_names or names_in_order(args.original.model.config)),
        )
        trace = self.categorized(trace, "calibration").decided()
        target = replace(target, by="" if target.by == BY_EXIT else target.by)
        share = len(rows) / sum(args.split.sizes().values())
        check_parts(parts_of(trace, target), target, args.delta, share)

    def train(self) -> None:
        args = self.args
        if (self.trained / SCORES).exists():  # written last
            return
        args.log(
            "training the exits" + (" and the backbone" if args.tune else "; the backbone stays as it is")
        )
        set_seed(args.seed)
        rate = TAG_RATE if args.original.tags else HEAD_RATE
        head = HeadConfig(pooling="pair") if self.has_pairs() else None
        model = ExitModel.from_encoder(args.original.model, head=head)
        model.config.name_or_path = args.original.name
        if args.label_names:
            model.config.rename_labels(args.label_names)
        elif model.config.problem.has_classes and has_default_names(model.config.label_names):
            warnings.warn(
                f"the model has no label names, so predictions are called {', '.join(model.config.label_names)}; "
                "name them with label_names=...",
                stacklevel=4,
            )
        model.config.decide = args.decide
        arguments = {
            "output_dir": self.trained.parent,
            "seed": args.seed,
            "eval_strategy": "no",
            "load_best_model_at_end": False,
            "report_to": "none",
            "logging_strategy": "no",
            "disable_tqdm": True,
            **({"num_train_epochs": args.tune} if args.tune else {}),
        }
        train(
            model,
            Dataset.from_dict(args.split.learn.columns()),
            mixed(fine_tune=False, head_rate=rate) if args.tune else frozen(rate=rate),
            arguments,
            tokenizer=args.original.tokenizer,
            max_length=args.original.max_length,
            callbacks=args.callbacks,
            progress=args.progress,
        )

    def has_pairs(self) -> bool:
        """Whether the texts are pairs and their tokens have types, so that heads can read the two texts apart."""
        original = self.args.original
        types = original.tokenizer("a", "b").get("token_type_ids", [])
        reads_types = backbone_for(original.model.config.model_type).has_token_types
        return isinstance(self.args.split.learn.texts[0], tuple) and reads_types and 1 in types

    def variant(self, precision: str) -> Variant:
        """The model in one precision, and its trace."""
        folder = self.trained
        if self.args.runtime == "onnx":
            folder, every = self.args.work / precision, self.args.work / f"{precision}-every-exit"
            if not folder.exists():
                from offramp.onnx_export import export

                if not every.exists():
                    self.args.log(f"exporting in {precision}")
                    export(self.trained, every, precision, texts=self.args.split.learn.texts)
                self.leave_out_exits(every, folder, precision)
        return Variant(precision, folder, self.trace(folder, precision, "calibration"))

    def leave_out_exits(self, every: Path, folder: Path, precision: str) -> None:
        """Writes the model without the exits that cost more time than they save on the texts to fit a rule on."""
        from offramp.onnx_export.stages import leave_out_exits

        args, layers = self.args, ModelInfo.read(every).exits
        kept: Sequence[int] = range(len(layers))
        # without exits, and without a rule, a model that was not tuned is the original
        last = args.work / f"{precision}-last-exit" if args.tune else self.plain_folder(precision)
        if not last.exists():
            leave_out_exits(every, last, kept[-1:])
        if args.split.unit == "text" and len(kept) > 1 and len(args.split.fit) >= FEWEST_TO_TELL:
            trace = self.trace(every, every.name, "fit")
            kept = paying_exits(trace, args.target, self.exit_costs(every, last, trace))
            if left_out := [layer for exit, layer in enumerate(layers) if exit not in kept]:
                args.log(
                    f"{precision}: exits at layers {', '.join(str(layers[exit]) for exit in kept)} stay; those at "
                    f"{', '.join(map(str, left_out))} would take more time than they save"
                )
        leave_out_exits(every, folder, kept)

    def exit_costs(self, every: Path, last: Path, fit_on: Trace) -> list[ExitCost]:
        """What a layer and an exit cost, for one text and in batches, if no text exits early."""
        args, layers = self.args, ModelInfo.read(every).exits
        args.log(f"timing the exits in {every.name} for at most {EXIT_SECONDS} s")
        never_sure = replace(fit_rule(Policy(Agreement()), fit_on, args.target), threshold=1.0)
        contenders = {"every": predictor(args, every, never_sure), "last": predictor(args, last, NEVER)}
        speeds = time_on(args, args.split.learn, contenders, EXIT_SECONDS)
        with_exits, bare = speeds["every"], speeds["last"]
        return [
            ExitCost(layer=least / layers[-1], exit=max(0.0, whole - least) / (len(layers) - 1))
            for whole, least in ((with_exits.single, bare.single), (with_exits.batch, bare.batch))
        ]

    def plain_folder(self, precision: str) -> Path:
        """The folder of the original with its last exit alone."""
        return self.args.work / f"plain-{precision}"

    def plain(self, precision: str) -> Path:
        """The original with its last exit alone, in one graph: the fastest way to run all of it."""
        args, folder = self.args, self.plain_folder(precision)
        if not folder.exists():
            original = args.original
            model = ExitModel.from_encoder(original.model, exits=[original.model.config.num_hidden_layers])
            model.config.rename_labels(ModelInfo.read(self.trained).labels)
            model.config.decide = args.decide
            if args.runtime == "onnx":
                from offramp.onnx_export import export

                args.log(f"exporting the original in {precision}")
                export(model, folder, precision, original.tokenizer, texts=args.split.learn.texts)
            else:
                with atomic_folder(folder) as draft:
                    model.save_pretrained(draft)
                    original.tokenizer.save_pretrained(draft)
        return folder

    def trace(self, folder: Path, name: str, part: str) -> Trace:
        """The logits of every exit, with the original's logits as reference."""
        args, file = self.args, self.args.work / f"{part}-{name}.trace"
        if not file.exists():
            rows = args.split.part(part)
            args.log(f"running every exit on the {part} texts in {name}")
            runner = Runner.from_pretrained(folder, NEVER)
            trace = collect(
                runner,
                Dataset.from_dict(rows.columns()),
                metrics=runner.runtime.info.problem.default_metrics,
                data=args.data,
                progress=args.progress,
            )
            trace = replace(
                trace,
                decide=args.decide,
                reference=self.reference(part, runner),
                reference_name=args.original.name,
                texts=rows.groups[trace.text_numbers],
                trained_on=np.isin(rows.groups, args.split.before(part))[trace.text_numbers],
            )
            if rows.by_query:
                trace = trace.grouped([text[0] for text in rows.texts])
            trace.save(file)
        return self.categorized(Trace.load(file), part).decided()

    def categorized(self, trace: Trace, part: str) -> Trace:
        categories = self.args.split.part(part).categories
        return (
            trace if categories is None else trace.categorized(self.args.category_column, categories.tolist())
        )

    def reference(self, part: str, runner: Runner | None = None) -> Array:
        """The original's logits, a row for each row of a trace; the runner knows which rows a tagger's trace has."""
        args, file = self.args, self.args.work / f"{part}.npy"
        if not file.exists():
            args.log(f"running the original model on the {part} texts")
            texts: list[Any] = args.split.part(part).texts
            if args.original.tags:
                assert runner is not None
                read = args.original.windows(texts)
                windows = [window for text in read for window in text.windows]
                kept = np.logical_or(*words_of(runner.engine, windows, read))  # as `collect` keeps them
                logits = np.concatenate(args.original.tag_logits(windows, args.progress))[kept]
            else:
                logits = args.original.logits(texts, args.progress)
            with atomic_file(file) as draft:
                np.save(draft, logits)
        reference: Array = np.load(file)
        return reference
