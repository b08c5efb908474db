"""The last steps of a retrofit: the comparison with the original, the report and the model folders."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from offramp.errors import Incompatible
from offramp.files import replace_folder, replaced_folder, write_files
from offramp.folder import REFERENCE, load_model, megabytes
from offramp.folder.manifest import PORTABLE
from offramp.inference.runner import NEVER
from offramp.inference.tagger import find_spans
from offramp.inference.windows import Words
from offramp.measuring.changes import Changes, find_changes
from offramp.measuring.speed import Predict, describe_machine, measure_contender
from offramp.policy import Policy
from offramp.problems import Array
from offramp.reports import report
from offramp.reports.results import RETROFIT, Megabytes, RetrofitResults, Unseen, full_depth_name
from offramp.reports.stored_policy import store_policy
from offramp.retrofits.arguments import Arguments
from offramp.retrofits.choice import Choice
from offramp.retrofits.exits import Exits, Variant
from offramp.retrofits.original import is_bit_equal
from offramp.retrofits.timing import predictor, predictor_of_original, time_on
from offramp.trace import Trace

ORIGINAL, OFFRAMP = "transformers", "offramp"
SAME_BITS = 256
"""Texts on which full depth is compared with the original bit by bit."""
TEST_SECONDS = 16
"""The most time that is spent on timing the comparison."""


def compare(exits: Exits, choice: Choice) -> tuple[RetrofitResults, Changes]:
    """The original, its exports without exits and the chosen policy, on texts that nothing was chosen on."""
    args, variant, policy = exits.args, choice.chosen.variant, choice.chosen.policy
    trace, test = exits.trace(variant.folder, variant.precision, "test"), args.split.test
    contenders: dict[str, tuple[Predict, Trace, Policy | None]] = {
        ORIGINAL: (predictor_of_original(args), trace, None)
    }
    for precision in args.precisions:
        plain = exits.plain(precision)
        its_trace = exits.trace(plain, plain.name, "test")
        contenders[full_depth_name(precision)] = predictor(args, plain, NEVER), its_trace, NEVER
    contenders[OFFRAMP] = predictor(args, variant.folder, policy), trace, policy
    same_bits = None
    if not args.tune and variant.precision == "fp32":
        same_bits = is_bit_equal(args.original, load_model(exits.trained)[0], test.texts[:SAME_BITS])
    args.log(f"timing the original and the retrofitted model for at most {TEST_SECONDS} s")
    predictors = {name: predict for name, (predict, _, _) in contenders.items()}
    speeds = time_on(args, test, predictors, TEST_SECONDS)
    rows = [
        measure_contender(name, at, under, speeds[name], speeds[ORIGINAL], args.target)
        for name, (_, at, under) in contenders.items()
    ]
    decision, target = policy.decide_trace(trace, args.target.top_k), args.target
    assert policy.certificate is not None
    changes = find_changes(trace, decision, test.rows, target.tolerance, target.top_k, spell(args, trace))
    results = RetrofitResults(
        date=str(date.today()),
        original=args.original.name,
        data=args.data,
        unit=args.split.unit,
        examples=args.split.sizes(),
        runtime=args.runtime,
        precision=variant.precision,
        kept_because=choice.reason,
        tuned=bool(args.tune),
        seed=args.seed,
        asked=args.asked,
        policy=str(policy),
        certificate=policy.certificate,
        fixed_layer=choice.chosen.fixed_layer,
        layers=tuple(trace.layers),
        exits=exit_shares(trace.by_text(decision.exits), trace),
        comparison=tuple(rows),
        unseen=None
        if args.split.unit == "query"
        else measure_unseen(trace[trace.unseen()], policy, target.tolerance),
        full_depth_bit_equal=same_bits,
        changes=changes.groups,
        megabytes=sizes(exits, variant),
        machine=describe_machine(),
        full_depths=tuple(choice.full_depths),
    )
    return results, changes


def spell(args: Arguments, trace: Trace) -> Callable[[int, Array], str]:
    """A function of a test text's number and the logits of its words: its spans, in words."""

    def spelled(row: int, logits: Array) -> str:
        text = args.split.test.texts[row]
        assert isinstance(text, str)
        [read] = args.original.windows([text])
        words = Words(np.arange(len(read.words)), read.words.starts, read.words.ends)
        spans = find_spans(text, words, logits, trace.scheme)
        return "; ".join(f"{span.label} {span.text}" for span in spans) or "none"

    return spelled


def exit_shares(exits: Array, trace: Trace) -> tuple[float, ...]:
    """The share of texts that take each exit, the deepest of their windows'."""
    return tuple((np.bincount(exits, minlength=len(trace.layers)) / len(exits)).tolist())


def measure_unseen(trace: Trace, policy: Policy, tolerance: float | None) -> Unseen:
    decision = policy.decide_trace(trace)
    changed = trace.by_text(~trace.agrees(decision.logits, tolerance))
    return Unseen(len(changed), int(changed.sum()))


def sizes(exits: Exits, variant: Variant) -> Megabytes:
    reference = reference_model(exits, variant)
    weights = sum(p.numel() * p.element_size() for p in exits.args.original.model.parameters())
    return Megabytes(
        model=megabytes(variant.folder),
        reference=0 if reference is None else megabytes(reference),
        original=round(weights / 1e6, 1),
    )


def reference_model(exits: Exits, variant: Variant) -> Path | None:
    """The folder of the original for the server's audit, where full depth is not the same."""
    return exits.plain("fp32") if exits.args.tune or variant.precision != "fp32" else None


def write(exits: Exits, choice: Choice, results: RetrofitResults, changes: Changes) -> None:
    """Writes the policies of the ladder, the report, then the model folders; all is complete once `model` exists."""
    home, chosen = exits.args.home, choice.chosen
    for rung_file in home.glob("rung-*.json"):
        rung_file.unlink()  # of another ladder
    for number, policy in enumerate(choice.rungs, 1):
        write_files({home / f"rung-{number}.json": json.dumps(policy.to_json(), indent=1)})
    write_report(exits, choice, results, changes)
    with replaced_folder(home / "model") as draft:
        shutil.copytree(chosen.variant.folder, draft, dirs_exist_ok=True)
        if reference := reference_model(exits, chosen.variant):
            shutil.copytree(reference, draft / REFERENCE)
        write_files({draft / RETROFIT: json.dumps(results.to_json(), indent=1)})
        store_policy(draft, chosen.policy, chosen.candidate.trace)
        portable = draft.parent / PORTABLE
        if results.runtime == "onnx":
            write_portable(exits.args, draft, portable)
        replace_folder(home / PORTABLE, portable)


def write_report(exits: Exits, choice: Choice, results: RetrofitResults, changes: Changes) -> None:
    """Opens with the results; a study of rules on the test texts follows, where there are classes or labels."""
    variant, traces = choice.chosen.variant, {}
    if results.unit == "text":
        trace = exits.trace(variant.folder, variant.precision, "test")
        if not trace.problem.has_classes and trace.labels is None:
            # the curves then show the correlation with the original
            trace = replace(trace, labels=trace.reference_predictions())
        traces = {"Rules compared on the test texts": trace}
    page = report(traces, opening=results.blocks(changes), shipped=choice.chosen.policy)
    page.save(exits.args.home / "report")


def write_portable(args: Arguments, model: Path, path: Path) -> None:
    """The model for other libraries, if its rule can be part of a graph, which also runs single texts here."""
    from offramp.onnx_export.portable import include_graph, write_portable

    try:
        write_portable(model, path)
        include_graph(model, path)
    except Incompatible as reason:
        args.log(f"no folder for other libraries: {reason}")
