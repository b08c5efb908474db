"""The arguments of `retrofit`, checked against each other and the model before anything takes long."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from offramp.data.checks import label_numbers
from offramp.errors import BadData, BadLabels, BadOption, MissingExtra, install_hint
from offramp.guarantees.guarantee import BY_CLASS, BY_EXIT
from offramp.guarantees.operating_point import Decisions, OperatingPoint
from offramp.guarantees.testing import class_names
from offramp.inference.collect import read_labels
from offramp.inference.texts import Text, check_texts
from offramp.measuring import Guarantee
from offramp.measuring.calibrate import rules_of
from offramp.measuring.curve import parse_rule
from offramp.measuring.proof import shares_of_delta
from offramp.models.config import names_in_order
from offramp.models.exit_model import hash_weights
from offramp.policy.decide import check_reranker, check_rule
from offramp.problems import Array, Problem
from offramp.retrofits.original import Original, load_original
from offramp.retrofits.text_split import TextSplit, check_enough, hash_texts, split_texts
from offramp.tags import TagScheme
from offramp.wording import count

RUNTIMES, PRECISIONS = ("onnx", "torch"), ("auto", "fp32", "int8")

WORK = "work"
"""The folder of intermediate files, in the output folder."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class Arguments:
    """What all steps of a retrofit read."""

    home: Path
    """The output folder."""
    original: Original
    texts: list[Text]
    split: TextSplit
    target: Guarantee
    rungs: list[Guarantee]
    """The looser guarantees of the ladder."""
    rules: Sequence[str] | None
    """To choose from; None for those of `calibrate`."""
    delta: float
    """The part of the target's delta that the rule with the largest share has, for each precision and rung."""
    runtime: str
    precisions: list[str]
    label_names: Sequence[str] | None
    decide: str
    """The operating point."""
    category_column: str
    """What the categories of texts are called, such as "language", if there are any."""
    tune: float
    """Epochs in which the backbone is trained too."""
    seed: int
    data: str
    progress: bool
    log: Log
    callbacks: Sequence[TrainerCallback]
    settings: Mapping[str, Any]
    """What the exits and their outputs depend on, as JSON."""
    asked: Mapping[str, Any]
    """What a policy is calibrated for, as JSON."""

    @property
    def work(self) -> Path:
        return self.home / WORK

    @property
    def choices(self) -> int:
        """How many calibrations share the delta."""
        return len(self.precisions) * (1 + len(self.rungs))


def check_arguments(
    model: str | PathLike[str],
    texts: Sequence[Text],
    out: str | PathLike[str],
    guarantee: Guarantee | float,
    *,
    labels: Sequence[Any] | None,
    label_names: Sequence[str] | None,
    decide: str,
    groups: Sequence[Any] | None,
    learn_from: Sequence[Text],
    categories: Sequence[Any] | None,
    tune: float,
    runtime: str | None,
    precision: str,
    rule: str | Sequence[str] | None,
    ladder: Sequence[float],
    seed: int,
    data: str,
    progress: bool,
    log: Log,
    callbacks: Sequence[TrainerCallback],
) -> Arguments:
    """The arguments of `retrofit`; `tune` is 0 without tuning."""
    target = guarantee if isinstance(guarantee, Guarantee) else Guarantee(guarantee)
    runtime = choose_runtime(runtime, precision)
    precisions = precisions_to_try(runtime, precision)
    if seed < 0:
        raise BadOption(f"seed={seed} must be 0 or more")
    rungs = looser_targets(target, ladder)
    original = load_original(model)
    texts, more = read_texts(original, target, texts, learn_from)
    check_columns(len(texts), target, groups, categories)
    by_query = target.unit == "query"
    if by_query and (groups is not None or labels is not None or more):
        raise BadOption(
            "a guarantee about rankings takes no groups, labels or learn_from=...; leave them out"
        )
    if by_query and decide:
        raise BadOption("a guarantee about rankings takes no operating point; leave out decide=...")
    decisions = decisions_of(original, decide, label_names)
    target = bounds_by_group(target.for_problem(decisions), original, decisions, label_names, categories)
    if by_query:
        check_reranker(original.outputs, decisions)
    if original.tags:
        target.check_tags(TagScheme(label_names or names_in_order(original.model.config)))
    numbers = None
    if labels is not None:
        numbers = check_labels(labels, len(texts), original, label_names, data or "the labels")
    if target.needs_labels and numbers is None:
        raise BadOption(f"risk={target.risk!r} needs labels, a correct one for each text")
    rules = rules_for(original, rule, by_query, decisions)
    split = split_texts(texts, numbers, groups, by_query, categories, more)
    share = max(shares_of_delta([parse_rule(name).rule for name in rules]))
    delta = target.delta * share / (len(precisions) * (1 + len(rungs)))
    check_enough(split, target, delta)
    settings = {
        "model": hash_weights(original.model),
        "label_names": label_names and [*label_names],
        "texts": hash_texts(texts, numbers),
        "learn_from": hash_texts(more, None) if more else None,
        "decide": decide,
        "groups": None if groups is None else hash_texts([*map(str, groups)], None),
        "tune": tune or False,
        "runtime": runtime,
        "seed": seed,
    }
    asked = {
        "guarantee": asdict(target),
        "categories": categories and hash_texts([*map(str, categories)], None),
        "rules": rules,
        "ladder": [*ladder],
        "precisions": precisions,
    }
    return Arguments(
        home=Path(out),
        original=original,
        texts=texts,
        split=split,
        target=target,
        rungs=rungs,
        rules=rules if rule else None,
        delta=delta,
        runtime=runtime,
        precisions=precisions,
        label_names=label_names,
        decide=decide,
        category_column="" if categories is None else target.by,
        tune=tune,
        seed=seed,
        data=data or "the texts",
        progress=progress,
        log=log,
        callbacks=callbacks,
        settings=json.loads(json.dumps(settings)),
        asked=json.loads(json.dumps(asked)),
    )


def choose_runtime(runtime: str | None, precision: str) -> str:
    if precision not in PRECISIONS:
        raise BadOption(f"precision={precision!r}; choose one of {', '.join(PRECISIONS)}")
    missing = [name for name in ("onnxruntime", "onnx", "onnxscript") if find_spec(name) is None]
    if runtime is None:
        runtime = "torch" if missing and precision != "int8" else "onnx"
    if runtime not in RUNTIMES:
        raise BadOption(f"runtime={runtime!r}; choose one of {', '.join(RUNTIMES)}")
    if runtime == "torch" and precision == "int8":
        raise BadOption("precision='int8' needs runtime='onnx'")
    if runtime == "onnx" and missing:
        raise MissingExtra(f"runtime='onnx' {install_hint(missing[0], 'onnx,export')}")
    return runtime


def precisions_to_try(runtime: str, precision: str) -> list[str]:
    if precision != "auto":
        return [precision]
    return ["fp32"] if runtime == "torch" else ["fp32", "int8"]


def looser_targets(target: Guarantee, ladder: Sequence[float]) -> list[Guarantee]:
    """The guarantees of the rungs of a ladder."""
    if not ladder:
        return []
    if isinstance(target.epsilon, Mapping):
        raise BadOption("a ladder takes one bound, not one per class")
    bounds = [target.epsilon, *ladder]
    if bounds != sorted({*bounds}):
        raise BadOption(
            f"ladder={[*ladder]}: give increasing bounds, all above the guarantee of {target.epsilon:g}."
        )
    return [replace(target, epsilon=epsilon) for epsilon in ladder]


def read_texts(
    original: Original, target: Guarantee, texts: Sequence[Text], learn_from: Sequence[Text]
) -> tuple[list[Text], list[Text]]:
    """The texts and those that only the exits learn from: all pairs or none."""
    pairs = False if original.tags else True if target.unit == "query" else None
    texts = [*check_texts(texts, pairs=pairs, keep_length=original.tags)]
    if not texts:
        raise BadData("there are no texts.")
    pairs = isinstance(texts[0], tuple)
    return texts, [*check_texts(learn_from, pairs=pairs, keep_length=original.tags)]


def check_columns(
    texts: int, target: Guarantee, groups: Sequence[Any] | None, categories: Sequence[Any] | None
) -> None:
    if groups is not None and len(groups) != texts:
        raise BadData(f"{count(len(groups), 'group')} for {count(texts, 'text')}; give one for each.")
    if (categories is None) != (target.by in ("", BY_EXIT, BY_CLASS)):
        raise BadOption(
            f"by={target.by!r} and categories=... belong together: the name of the categories, and one for each text"
        )
    if categories is not None and len(categories) != texts:
        raise BadData(f"{len(categories)} categories for {count(texts, 'text')}; give one for each.")


def decisions_of(original: Original, decide: str, label_names: Sequence[str] | None) -> Problem:
    """What the model decides at the operating point."""
    config = original.model.config
    if label_names and len(label_names) != config.num_labels:
        raise BadOption(f"{len(label_names)} label names for a model with {config.num_labels} outputs")
    return OperatingPoint.parse(decide).decisions(original.problem, label_names or names_in_order(config))


def bounds_by_group(
    target: Guarantee,
    original: Original,
    decisions: Problem,
    label_names: Sequence[str] | None,
    categories: Sequence[Any] | None,
) -> Guarantee:
    """The target with a bound for each class or category, if it is about them."""
    if target.by == BY_CLASS:
        outputs = label_names or names_in_order(original.model.config)
        named = [*decisions.thresholds] if isinstance(decisions, Decisions) else outputs
        return target.with_group_names(class_names(decisions, named))
    return target if categories is None else target.with_group_names(sorted({*map(str, categories)}))


def check_labels(
    labels: Sequence[Any], texts: int, original: Original, label_names: Sequence[str] | None, source: str
) -> Array | None:
    """Labels as numbers in the order of the outputs; None if all are missing."""
    problem = original.problem
    if original.tags:
        raise BadLabels("a tagger takes no labels; `offramp trace` and `curve` score it on words with tags")
    if len(labels) != texts:
        raise BadLabels(f"{count(len(labels), 'label')} for {count(texts, 'text')}; give one for each.")
    cells = [label.item() if isinstance(label, np.generic) else label for label in labels]
    try:
        if any(
            isinstance(name, str) for cell in cells for name in (cell if isinstance(cell, list) else [cell])
        ):
            names = label_names or names_in_order(original.model.config)
            cells = label_numbers(cells, names, problem, ",", source)
        elif problem.has_classes:  # a column of floats may hold classes
            cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]
        return read_labels(cells, 0, problem, original.outputs)
    except BadData as error:
        raise BadLabels(str(error)) from None


def rules_for(
    original: Original, rule: str | Sequence[str] | None, by_query: bool, problem: Problem
) -> list[str]:
    """The rules to choose from; one that cannot decide for such a model is an error."""
    if rule is None:
        return ["rank"] if by_query else rules_of(problem, original.outputs)
    rules = [rule] if isinstance(rule, str) else [*rule]
    for name in rules:
        check_rule(parse_rule(name).rule, original.outputs, problem, has_gate=False)
    return rules
