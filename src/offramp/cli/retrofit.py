"""offramp retrofit: a faster version of a fine-tuned classifier or tagger, from texts alone, with a guarantee."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.options import TextOption, TextPairOption, category_column, check_writable, split_names
from offramp.cli.progress import heartbeat, in_terminal, training_progress
from offramp.cli.rows import read_column, read_labels, read_lists, read_rows
from offramp.cli.targets import BY_HELP, DEFAULT_RULES_HELP, RISK_HELP, parse_bounds
from offramp.errors import BadLabels, BadOption


def retrofit(
    model: Annotated[str, Argument(help="Folder or hub name of a fine-tuned classifier or tagger.")],
    texts: Annotated[
        Path,
        Option(
            help="A txt (one text per line), csv, tsv, jsonl or parquet file of texts like those the model will see."
        ),
    ],
    out: Annotated[Path, Option(help="Folder to create; the faster model is in OUT/model.")],
    guarantee: Annotated[
        str | None,
        Option(
            help="The largest share of predictions that may change, by default 0.02; or several bounds, proven "
            "together: missed=0.02,false_alarm=0.05; or one per class: spam=0.01,ham=0.02; or a json or yaml file of "
            "them. With --rank, the largest mean loss per query, by default 0.05."
        ),
    ] = None,
    delta: Annotated[float, Option(help="The probability that the guarantee does not hold.")] = 0.05,
    tolerance: Annotated[
        float | None, Option(help="For numbers, and for --risk score: values this close count as equal.")
    ] = None,
    text: TextOption = None,
    text_pair: TextPairOption = None,
    label: Annotated[
        str | None, Option(help="Column of labels, for scores and --risk; guessed from its name by default.")
    ] = None,
    labels: Annotated[
        str | None, Option(help="Comma-separated names for the outputs of a model that has none.")
    ] = None,
    decide: Annotated[
        str,
        Option(
            help="Operating point, such as 'jailbreak>=0.7', stored with the model; by default the most likely label."
        ),
    ] = "",
    group: Annotated[
        str | None,
        Option(
            help="Column of the conversation, customer or other source of a text, if texts of one source are alike."
        ),
    ] = None,
    learn_from: Annotated[
        Path | None,
        Option(help="Further texts that only the exits learn from, such as those MODEL was fine-tuned on."),
    ] = None,
    tune: Annotated[
        bool,
        Option(
            "--tune",
            help="Also fine-tune the backbone, with the original as teacher. Slower, but texts exit earlier.",
        ),
    ] = False,
    epochs: Annotated[float, Option(help="Epochs of --tune.")] = 2,
    runtime: Annotated[
        str | None, Option(help="onnx or torch; by default ONNX Runtime if it is installed.")
    ] = None,
    precision: Annotated[
        str, Option(help="fp32, int8, or auto: calibrate and time both, and keep the faster.")
    ] = "auto",
    rule: Annotated[
        list[str] | None,
        Option(help=f"Rule that decides when to exit; repeat to choose among several. {DEFAULT_RULES_HELP}"),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of training.")] = 0,
    rank: Annotated[
        bool, Option("--rank", help="MODEL is a cross-encoder: guarantee the top documents of each query.")
    ] = False,
    query: Annotated[
        str, Option(help="With --rank: column of the query; --text is that of the document.")
    ] = "query",
    top_k: Annotated[int, Option(help="With --rank: how many documents to find.")] = 10,
    risk: Annotated[
        str | None,
        Option(
            help=f"What the guarantee bounds: {RISK_HELP}. With --rank: overlap (default, documents missed) or ndcg "
            "(against full depth's order)."
        ),
    ] = None,
    by: Annotated[str | None, Option(help=f"With a guarantee: {BY_HELP}")] = None,
    ladder: Annotated[
        list[float] | None,
        Option(help="A larger bound, for a policy to use under load: OUT/rung-1.json; repeatable."),
    ] = None,
) -> Result:
    """Make a fine-tuned classifier faster, with a guarantee.

    Adds exits to the model, trains them on the texts with the model itself as teacher, exports it to ONNX
    Runtime, and sets a policy under which, with confidence 1 - DELTA, at most GUARANTEE of the predictions
    differ from those of MODEL as it was. No labels are needed. Run the same command again to resume; with another
    guarantee, rule, precision or ladder it reuses the exits and replaces the policy.

    \b
    Examples:
        offramp retrofit my-classifier --texts logs.csv --guarantee 0.02 --out fast
        offramp predict fast new.csv
        offramp serve fast
        offramp retrofit my-guard --texts logs.csv --decide "jailbreak>=0.7" --out fast-guard
        offramp retrofit my-ner --texts logs.csv --guarantee 0.01 --risk missed --out fast-ner
        offramp retrofit my-reranker --texts candidates.csv --rank --out fast-reranker
    """
    check_writable(out)
    from offramp.measuring import Guarantee
    from offramp.retrofits import retrofit as run

    if rank:
        classifier_flags = {
            "tolerance": tolerance,
            "text-pair": text_pair,
            "label": label,
            "labels": labels,
            "group": group,
            "by": by,
            "decide": decide,
            "learn-from": learn_from,
        }
        for flag, value in classifier_flags.items():
            if value:
                raise BadOption(f"--{flag} is not used with --rank; leave it out.")
        target = Guarantee(parse_bound(guarantee or "0.05"), delta, risk or "overlap", top_k=top_k)
        rows = [row for rows in read_lists(texts, query, text or "text").values() for row in rows]
    else:
        bounds = parse_bounds(guarantee or "0.02")
        target = Guarantee(bounds, delta, risk or "changed", tolerance, by=by or "")
        rows = [*read_rows(texts, text, text_pair)]
    further = [] if learn_from is None else [row.text for row in read_rows(learn_from, text, text_pair)]
    with training_progress() as callbacks, heartbeat("loading the model") as line:
        start = partial(
            run,
            model,
            [row.text for row in rows],
            out,
            target,
            label_names=split_names(labels),
            decide=decide,
            groups=read_column(rows, texts, group, "--group"),
            learn_from=further,
            categories=read_column(rows, texts, category_column(by), "--by"),
            tune=tune,
            epochs=epochs,
            runtime=runtime,
            precision=precision,
            rule=rule or None,
            ladder=ladder or (),
            seed=seed,
            data=texts.name,
            progress=in_terminal(),
            callbacks=callbacks,
            log=line,
        )
        try:
            done = start(labels=None if rank else read_labels(rows, texts, text, text_pair, label))
        except BadLabels as error:
            if label is not None or target.needs_labels:
                raise
            line(f"no scores: the file's labels are not used ({error})")
            done = start()
    after = NEXT.format(out=out, command="rerank" if rank else "predict")
    if done.portable is not None:
        after += f"\nFor other libraries and languages: {done.portable}"
    return Result(done.to_json(), f"{done}\n\n{after}")


NEXT = """Report: {out}/report/report.html
Next:
  offramp {command} {out} new.csv
  offramp serve {out}
  offramp info {out}"""


def parse_bound(text: str) -> float:
    bound = parse_bounds(text)
    if not isinstance(bound, float):
        raise BadOption(f"--guarantee {text}: expected one number with --rank, such as 0.05.")
    return bound
