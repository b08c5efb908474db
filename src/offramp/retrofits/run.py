"""retrofit(): from a fine-tuned classifier and texts without labels to a faster model with a certificate.

The steps; an interrupted run resumes at the one where it stopped:

1. the texts are split, and about half of them train the exits (`text_split.py`, `offramp.training`);
2. the model is exported, in one precision or in both (`offramp.onnx_export`);
3. the predictions of the original model on the others are the reference (`original.py`);
4. a policy is calibrated for each, and the faster is kept (`offramp.measuring`);
5. it is compared with the original on texts that nothing was chosen on (`offramp.measuring.comparison`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from offramp.data.checks import label_numbers
from offramp.errors import BadData, BadLabels, BadOption, MissingExtra, NoSafeThreshold, install_hint
from offramp.files import write_files
from offramp.guarantees.certificate import BY_CLASS, BY_EXIT
from offramp.guarantees.operating_point import Decisions, OperatingPoint
from offramp.guarantees.testing import class_names
from offramp.inference.collect import read_labels
from offramp.inference.texts import Text, check_texts
from offramp.measuring import Guarantee
from offramp.measuring.calibrate import rules_of
from offramp.measuring.curve import parse_rule
from offramp.measuring.guarantee import shares_of_delta, target_for, with_bounds_of
from offramp.models.config import names_in_order
from offramp.models.exit_model import hash_weights
from offramp.policy.decide import check_reranker, check_rule
from offramp.problems import Array, Problem
from offramp.reports.results import RetrofitResults
from offramp.reports.table import short
from offramp.retrofits.original import Original, load_original
from offramp.retrofits.output_folder import WORK, attempt_in, check_work, open_output
from offramp.retrofits.steps import PORTABLE, Log, Steps
from offramp.retrofits.text_split import check_enough, describe_repeats, hash_texts, split_texts
from offramp.wording import count

RUNTIMES, PRECISIONS = ("onnx", "torch"), ("auto", "fp32", "int8")


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
    target = guarantee if isinstance(guarantee, Guarantee) else Guarantee(guarantee)
    runtime = choose_runtime(runtime, precision)
    precisions = precisions_to_try(runtime, precision)
    check_seed(seed)
    by_query = target.unit == "query"
    rungs = looser_targets(target, ladder)
    original = load_original(model)
    tags = original.problem.of_tokens
    texts = [*check_texts(texts, pairs=False if tags else True if by_query else None, keep_length=tags)]
    if not texts:
        raise BadData("there are no texts.")
    more = [*check_texts(learn_from, pairs=isinstance(texts[0], tuple), keep_length=tags)]
    if tags and labels is not None:
        raise BadLabels("a tagger takes no labels; `offramp trace` and `curve` score it on words with tags")
    if by_query and (groups is not None or labels is not None or more):
        raise BadOption(
            "a guarantee about rankings takes no groups, labels or learn_from=...; leave them out"
        )
    if groups is not None and len(groups) != len(texts):
        raise BadData(f"{count(len(groups), 'group')} for {count(len(texts), 'text')}; give one for each.")
    if (categories is None) != (target.by in ("", BY_EXIT, BY_CLASS)):
        raise BadOption(
            f"by={target.by!r} and categories=... belong together: the name of the categories, and one for each text"
        )
    if categories is not None and len(categories) != len(texts):
        raise BadData(f"{len(categories)} categories for {count(len(texts), 'text')}; give one for each.")
    decisions = decisions_of(original, decide, label_names)
    if by_query and decide:
        raise BadOption("a guarantee about rankings takes no operating point; leave out decide=...")
    target = target_for(decisions, target)
    if target.by == BY_CLASS:
        outputs = label_names or names_in_order(original.model.config)
        named = [*decisions.thresholds] if isinstance(decisions, Decisions) else outputs
        target = with_bounds_of(target, class_names(decisions, named))
    elif categories is not None:
        target = with_bounds_of(target, sorted({*map(str, categories)}))
    if by_query:
        check_reranker(original.model.config.num_labels or 1, decisions)
    known = None
    if labels is not None:
        known = check_labels(labels, len(texts), original, label_names, data or "the labels")
    if target.needs_labels and known is None:
        raise BadOption(f"risk={target.risk!r} needs labels, a correct one for each text")
    rules = rules_for(original, rule, by_query, decisions)
    split = split_texts(texts, known, groups, by_query, categories, more)
    choices = len(precisions) * (1 + len(rungs))
    level = target.delta * max(shares_of_delta([parse_rule(each).rule for each in rules])) / choices
    check_enough(split, target, level)
    home = Path(out)
    asked = json.loads(
        json.dumps(
            {
                "guarantee": asdict(target),
                "categories": categories and hash_texts([*map(str, categories)], None),
                "rules": rules,
                "ladder": [*ladder],
                "precisions": precisions,
            }
        )
    )
    settings = {
        "model": hash_weights(original.model),
        "label_names": label_names and [*label_names],
        "texts": hash_texts(texts, known),
        "learn_from": hash_texts(more, None) if more else None,
        "decide": decide,
        "groups": None if groups is None else hash_texts([*map(str, groups)], None),
        "tune": epochs if tune else False,
        "runtime": runtime,
        "seed": seed,
    }
    with open_output(home, settings):
        finished = RetrofitResults.load(home / "model") if (home / "model").exists() else None
        if finished is None or finished.asked != asked:
            if finished is not None:
                check_work(home)
                log(f"{home} is finished, with another policy; the exits and their outputs are reused")
            attempt = attempt_in(home, texts, settings | asked, target.delta)
            for line in [*attempt.describe(), *describe_repeats(split)]:
                log(line)
            learn, fit, calibration, test = split.sizes().values()
            log(
                f"{learn} {'queries' if by_query else 'texts'} to learn from, {fit} to fit a rule on, "
                f"{calibration} to calibrate on and {test} to test on"
            )
            steps = Steps(
                home / WORK,
                original,
                split,
                decide,
                target.by if categories is not None else "",
                data or "the texts",
                seed,
                progress,
                log,
                callbacks,
            )
            steps.check_groups(target, level, label_names)
            exits = steps.train_exits(label_names, tune, epochs)
            variants = [steps.variant(exits, runtime, each, target, tune) for each in precisions]
            search: dict[str, Any] = {
                "rules": rules if rule else None,
                "choices": choices,
            }
            try:
                with attempt.paid() as spent:
                    calibrated = steps.calibrate(variants, target, spent=spent, **search)
                    chosen, reason = steps.choose(calibrated, len(variants))
                    looser = [
                        steps.calibrate_variant(chosen.variant, rung, spent=spent, **search)[0]
                        for rung in rungs
                    ]
            except NoSafeThreshold:
                if finished is not None:
                    log(f"{home} keeps its policy, {short(finished.policy)}: {finished.certificate.summary}")
                raise
            results, changes = steps.test(asked, runtime, target, chosen, exits, tune, reason)
            for rung_file in home.glob("rung-*.json"):
                rung_file.unlink()  # of another ladder
            for number, rung in enumerate(looser, 1):
                write_files({home / f"rung-{number}.json": json.dumps(rung.policy.to_json(), indent=1)})
            steps.finish(home, chosen, results, changes)
        results = RetrofitResults.load(home / "model")
    portable = home / PORTABLE
    return Retrofit(home / "model", results, portable if portable.exists() else None)


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


def check_seed(seed: int) -> None:
    if seed < 0:
        raise BadOption(f"seed={seed} must be 0 or more")


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


def decisions_of(original: Original, decide: str, label_names: Sequence[str] | None) -> Problem:
    """What the model decides at the operating point."""
    config = original.model.config
    if label_names and len(label_names) != config.num_labels:
        raise BadOption(f"{len(label_names)} label names for a model with {config.num_labels} outputs")
    return OperatingPoint.parse(decide).decisions(original.problem, label_names or names_in_order(config))


def rules_for(
    original: Original, rule: str | Sequence[str] | None, by_query: bool, problem: Problem
) -> list[str]:
    """The rules to choose from; one that cannot decide for such a model is an error."""
    outputs = original.model.config.num_labels or 1
    if rule is None:
        return ["rank"] if by_query else rules_of(problem, outputs)
    rules = [rule] if isinstance(rule, str) else [*rule]
    for each in rules:
        check_rule(parse_rule(each).rule, outputs, problem, has_gate=False)
    return rules


def check_labels(
    labels: Sequence[Any], texts: int, original: Original, label_names: Sequence[str] | None, source: str
) -> Array | None:
    """Labels as numbers in the order of the outputs; None if all are missing."""
    config = original.model.config
    outputs = config.num_labels or 1
    problem = original.problem
    if len(labels) != texts:
        raise BadLabels(f"{count(len(labels), 'label')} for {count(texts, 'text')}; give one for each.")
    cells = [label.item() if isinstance(label, np.generic) else label for label in labels]
    try:
        if any(
            isinstance(name, str) for cell in cells for name in (cell if isinstance(cell, list) else [cell])
        ):
            cells = label_numbers(cells, label_names or names_in_order(config), problem, ",", source)
        elif problem.has_classes:  # a column of floats may hold classes
            cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]
        return read_labels(cells, 0, problem, outputs)
    except BadData as error:
        raise BadLabels(str(error)) from None
