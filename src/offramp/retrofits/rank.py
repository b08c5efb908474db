"""retrofit_reranker(): like `retrofit`, for a cross-encoder that ranks documents.

The exits are trained and exported in the same steps. The pairs are split by query, the guarantee is about the top k
of each query, and time is measured for whole queries.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from transformers import TrainerCallback

from offramp.errors import BadData, BadOption
from offramp.files import atomic_folder, write_files
from offramp.guarantees import Guarantee
from offramp.guarantees.bounds import betting_examples
from offramp.inference.classifier import NEVER
from offramp.inference.reranker import Reranker
from offramp.inference.texts import check_texts
from offramp.measuring.calibrate import calibrate
from offramp.measuring.comparison import Contender
from offramp.measuring.rankings import Rankings
from offramp.models.exit_model import hash_weights
from offramp.policy import Policy
from offramp.policy.decide import check_reranker
from offramp.problems import problem_of
from offramp.reports.results import RetrofitResults, full_depth_name
from offramp.reports.stored_policy import store_policy
from offramp.retrofits.original import Original, load_original
from offramp.retrofits.output_folder import attempt_in, check_same_guarantee, open_output
from offramp.retrofits.run import Retrofit, check_seed, choose_runtime, precisions_to_try
from offramp.retrofits.steps import (
    CHOICE_SECONDS,
    EXITS,
    ORIGINAL,
    TEST_SECONDS,
    Log,
    Steps,
    Variant,
    exit_shares,
    faster_one,
    only_one,
)
from offramp.retrofits.text_split import CALIBRATION, TextSet, hash_texts, split_texts
from offramp.trace import Trace

TIMED_QUERIES = 10

Query = tuple[str, list[str]]
"""With its documents."""


def retrofit_reranker(
    model: str | PathLike[str],
    pairs: Sequence[tuple[str, str]],
    out: str | PathLike[str],
    guarantee: Guarantee | float = 0.05,
    *,
    ladder: Sequence[float] = (),
    tune: bool = False,
    epochs: float = 2,
    runtime: str | None = None,
    precision: str = "auto",
    seed: int = 0,
    data: str = "",
    progress: bool = False,
    log: Log = lambda line: None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Retrofit:
    """Makes a cross-encoder faster, and proves how much of the top k of a query may change.

    Called again with the same arguments, it resumes where it was interrupted.

    Args:
        model: the folder or hub name of a `...ForSequenceClassification` with one output, or two classes.
        pairs: a query and a document each, with about as many documents per query as in production; no labels are
            needed.
        out: the folder to create; the faster model is in `out/model`.
        guarantee: the largest mean share of the top 10 that may be missed, with 95 % confidence.
        ladder: larger bounds, for rules that a server uses under load; `out/rung-1.json` is the first of them.

    The other arguments are those of `retrofit`.
    """
    target = guarantee if isinstance(guarantee, Guarantee) else Guarantee(guarantee, risk="overlap")
    runtime = choose_runtime(runtime, precision)
    precisions = precisions_to_try(runtime, precision)
    check_seed(seed)
    rungs = looser_targets(target, ladder)
    texts: list[Any] = [*check_texts(pairs, pairs=True)]
    check_enough_queries(texts, target, len(precisions) * (1 + len(ladder)))
    original = load_original(model)
    outputs = original.model.config.num_labels or 1
    check_reranker(outputs, problem_of(outputs, original.model.config.problem_type))
    home = Path(out)
    settings = {
        "model": hash_weights(original.model),
        "texts": hash_texts(texts, None),
        "guarantee": asdict(target),
        "ladder": [*ladder],
        "tune": epochs if tune else False,
        "runtime": runtime,
        "precisions": precisions,
        "seed": seed,
    }
    with open_output(home, settings):
        if not (home / "model").exists():
            attempt = attempt_in(home, texts, settings, target.delta)
            for line in attempt.describe():
                log(line)
            split = split_texts(texts, groups=[query for query, _ in texts])
            steps = Steps(home / "work", original, split, data or "the pairs", seed, progress, log, callbacks)
            exits = steps.train_exits(None, tune, epochs)
            variants = [steps.variant(exits, runtime, each) for each in precisions]
            choices = len(variants) * (1 + len(rungs))
            with attempt.paid() as spent:
                calibrate_for = partial(rule_for, steps, choices=choices, spent=spent)
                safe = steps.safe(variants, partial(calibrate_for, target))
                variant, rule, reason = choose(steps, safe, len(variants))
                looser = [calibrate_for(rung, variant) for rung in rungs]
            results = measure(steps, variant, rule, target, runtime, tune, reason)
            for number, rung in enumerate(looser, 1):
                write_files({home / f"rung-{number}.json": json.dumps(rung.to_json(), indent=1)})
            with atomic_folder(home / "model") as draft:
                steps.write_model(draft, variant, results)
                store_policy(draft, rule)
        results = RetrofitResults.load(home / "model")
        check_same_guarantee(home, results.certificate, target.epsilon)
    return Retrofit(home / "model", results)


def looser_targets(target: Guarantee, ladder: Sequence[float]) -> list[Guarantee]:
    """The guarantees of the rungs of a ladder."""
    bounds = [cast(float, target.epsilon), *ladder]
    if bounds != sorted({*bounds}):
        raise BadOption(
            f"ladder={[*ladder]}: give increasing bounds, all above the guarantee of {target.epsilon:g}."
        )
    return [replace(target, epsilon=epsilon) for epsilon in ladder]


def check_enough_queries(pairs: Sequence[tuple[str, str]], target: Guarantee, choices: int) -> None:
    """Too few queries to prove the guarantee, even if nothing is missed, are an error."""
    queries = len({query for query, _ in pairs})
    proof = betting_examples([0.0], cast(float, target.epsilon), target.delta / choices) or 0
    needed = ceil((proof + 1) / CALIBRATION[0]) + 1
    if queries < needed:
        raise BadData(
            f"not enough queries ({queries}): a bound of {target.epsilon:g} takes {proof} to calibrate on, so "
            f"{needed} in all, and more if documents are missed. Add queries, or allow a larger bound."
        )


def by_query(part: TextSet) -> list[Query]:
    found: dict[str, list[str]] = {}
    for pair in part.texts:
        found.setdefault(pair[0], []).append(pair[1])
    return [*found.items()]


def rule_for(steps: Steps, target: Guarantee, variant: Variant, *, choices: int, spent: float) -> Policy:
    trace, fit_on = (lists_of(steps, variant, part) for part in ("calibration", "fit"))
    return calibrate(trace, "rank", target, fit_on=fit_on, choices=choices, spent=spent).policy


def lists_of(steps: Steps, variant: Variant, part: str) -> Trace:
    """The trace of a part, grouped by query."""
    texts = getattr(steps.split, part).texts
    return steps.trace(variant.folder, variant.precision, part).grouped([query for query, _ in texts])


def choose(
    steps: Steps, calibrated: Sequence[tuple[Variant, Policy]], tried: int
) -> tuple[Variant, Policy, str]:
    """The faster one on calibration queries, and the reason in words."""
    if len(calibrated) == 1:
        return *calibrated[0], only_one(tried)
    steps.log("timing " + " and ".join(variant.precision for variant, _ in calibrated))
    contenders = {variant.precision: ranker(variant, rule) for variant, rule in calibrated}
    speeds = steps.compare_speed(
        contenders, by_query(steps.split.calibration)[:TIMED_QUERIES], CHOICE_SECONDS
    )
    variant, rule = min(calibrated, key=lambda each: speeds[each[0].precision].cost)
    return variant, rule, faster_one(variant.precision, speeds, "query")


def measure(
    steps: Steps,
    variant: Variant,
    rule: Policy,
    target: Guarantee,
    runtime: str,
    tuned: bool,
    kept_because: str,
) -> RetrofitResults:
    """The original, full depth and the rule, on queries that nothing was chosen on."""
    part, original = steps.split.test, steps.original
    trace = lists_of(steps, variant, "test")
    rankings = Rankings(trace, target.top_k)
    steps.log("timing the original and the retrofitted model")
    rules = {ORIGINAL: None, full_depth_name(variant.precision): NEVER, EXITS: rule}
    speeds = steps.compare_speed(
        {
            name: partial(original_scores, original) if under is None else ranker(variant, under)
            for name, under in rules.items()
        },
        by_query(part)[:TIMED_QUERIES],
        TEST_SECONDS,
    )

    def contender(name: str, under: Policy | None) -> Contender:
        losses = dict.fromkeys(("overlap", "ndcg"), 0.0)
        layer = float(trace.layers[-1])
        if under is not None:
            decision = rankings.decide(under)
            losses = {risk: float(rankings.losses(decision.logits, risk).mean()) for risk in losses}
            layer = float(np.asarray(trace.layers)[decision.exits].mean())
        return Contender(
            name, losses, {}, layer, speeds[name], speeds[name].times_faster_than(speeds[ORIGINAL])
        )

    assert rule.certificate is not None
    return RetrofitResults(
        date=str(date.today()),
        original=original.name,
        data=steps.data,
        unit="query",
        examples={name: len(by_query(getattr(steps.split, name))) for name in steps.split.sizes()},
        runtime=runtime,
        precision=variant.precision,
        kept_because=kept_because,
        tuned=tuned,
        seed=steps.seed,
        policy=str(rule),
        certificate=rule.certificate,
        static_cut=None,
        layers=tuple(trace.layers),
        exits=exit_shares(rankings.decide(rule).exits, trace),
        comparison=tuple(contender(name, under) for name, under in rules.items()),
        unseen=None,
        full_depth_bit_equal=None,
        megabytes=steps.megabytes(variant, runtime, tuned),
    )


def ranker(variant: Variant, policy: Policy) -> Any:
    return Reranker.from_pretrained(variant.folder, policy).rank_many


def original_scores(original: Original, queries: Sequence[Query]) -> object:
    return original.logits([(query, document) for query, documents in queries for document in documents])
