"""Retrofit a 12-layer classifier of SST-2, and compare it with its rivals.

    python benchmarks/retrofit.py ENCODER GLUE --out runs/retrofit [--small SMALL_ENCODER] [--cut 6 8] [--tune]

A plain transformers classifier is fine-tuned on 8,000 labelled rows of the train file; `offramp retrofit` gets some
of the other rows without labels. Both are measured on the development set (872 sentences), which is harder than the
phrases of the train file, so the certificate does not cover it. Rivals, all in ONNX Runtime, scales from the same
texts: the classifier at full depth; the encoder cut at --cut layers and SMALL_ENCODER, fine-tuned on the same rows.
With --tune there is a second retrofit, which trains the backbone too. Contenders are timed in turns. Finished steps
in --out are reused. Writes retrofit.json and retrofit.svg, and prints Markdown.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes import SST2
from shared import about, export_full_depth, fine_tune, markdown, read_sst2

from offramp import Classifier, NoSafeThreshold, retrofit
from offramp.measuring.comparison import compare_speed
from offramp.retrofits.original import Original, load_original

LABELS = ("negative", "positive")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    rows = read_sst2(options.glue / "SST-2" / "train.tsv")
    order = np.random.default_rng(0).permutation(len(rows["text"])).tolist()
    labelled = [(rows["text"][row], rows["label"][row]) for row in order[: SST2["train"]]]
    others = [rows["text"][row] for row in order[SST2["train"] :][-options.texts :]]

    def fine_tuned(name: str, encoder: Path, **config: Any) -> Original:
        texts, labels = zip(*labelled, strict=True)
        config |= {"id2label": dict(enumerate(LABELS)), "label2id": {"negative": 0, "positive": 1}}
        fine_tune(encoder, [texts], labels, options.out / name, seed=options.seed, config=config)
        return load_original(options.out / name)

    def exported(model: Original) -> Any:
        folder = options.out / f"{model.name}-{precision}"
        return predictor(export_full_depth(model, folder, precision, others[:400]), "never")

    original = fine_tuned("gte-sst2", options.encoder)
    retrofitted = partial(retrofit, options.out / original.name, others, data="SST-2 phrases", log=print)
    done = retrofitted(options.out / "fast", options.guarantee)
    contenders: dict[str, Any] = {"transformers": original.logits}
    precision = done.results.precision
    for name in ("fp32", "int8"):
        contenders[f"ONNX {name}, full depth"] = predictor(
            options.out / "fast" / "work" / f"plain-{name}", "never"
        )
    for layers in options.cut:
        cut = fine_tuned(f"cut-{layers}", options.encoder, num_hidden_layers=layers)
        contenders[f"cut at layer {layers}, retrained, {precision}"] = exported(cut)
    if options.small:
        contenders[f"{options.small.name}, {precision}"] = exported(fine_tuned("small", options.small))
    contenders[f"offramp, {precision}"] = predictor(done.folder, None)
    tuned = None
    if options.tune:
        try:
            tuned = retrofitted(options.out / "tuned", options.guarantee, tune=True)
            contenders[f"offramp --tune, {tuned.results.precision}"] = predictor(tuned.folder, None)
        except NoSafeThreshold as refusal:
            print(f"--tune: {refusal}")

    dev = read_sst2(options.glue / "SST-2" / "dev.tsv")
    reference = original.logits(dev["text"]).argmax(-1)
    speeds = compare_speed(contenders, dev["text"])
    results = []
    for name, predict in contenders.items():
        predicted, layer = predictions(predict, dev["text"])
        results.append(
            {
                "name": name,
                "accuracy": 100 * float(np.mean(predicted == np.array(dev["label"]))),
                "changed": 100 * float(np.mean(predicted != reference)),
                "mean_layer": layer,
                "one_text": speeds[name].single,
                "in_batches": speeds[name].batch,
                "times_one_text": speeds[name].times_faster_than(speeds["transformers"]).single,
                "times_in_batches": speeds[name].times_faster_than(speeds["transformers"]).batch,
            }
        )
    every_layer = {
        name: layer_scores(options.out / "fast" / "work" / name, dev["text"], dev["label"], reference)
        for name in ("fp32", "int8")
    }
    record = {
        **about(threads=options.threads),
        "retrofit": done.to_json(),
        "tuned": tuned and tuned.to_json(),
        "dev": results,
    }
    record["every_layer"] = every_layer
    (options.out / "retrofit.json").write_text(json.dumps(record, indent=1))
    plot(results, options.out / "retrofit.svg")
    print(done, *([tuned] if tuned else []), "", sep="\n\n")
    print(table(results), "", layer_table(every_layer), sep="\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("glue", type=Path, help="folder of the GLUE tasks")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", type=Path, help="folder of a smaller encoder, a rival")
    parser.add_argument("--texts", type=int, default=24_000, help="texts without labels, at most 59,349")
    parser.add_argument(
        "--cut", type=int, nargs="+", default=[6], help="layers of the rivals that are cut and retrained"
    )
    parser.add_argument("--guarantee", type=float, default=0.02)
    parser.add_argument("--tune", action="store_true", help="also retrofit with a tuned backbone")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def predictor(folder: Path, policy: str | None) -> Any:
    return Classifier.from_pretrained(folder, policy).predict


def predictions(predict: Any, texts: list[str]) -> tuple[Any, float]:
    """Classes, and the mean layer where the contender has exits."""
    found = predict(texts)
    if isinstance(found, np.ndarray):
        return found.argmax(-1), float("nan")
    classes = np.array([list(each.probabilities).index(each.label) for each in found])
    return classes, float(np.mean([each.layer for each in found]))


def layer_scores(folder: Path, texts: list[str], labels: list[int], reference: Any) -> dict[str, list[float]]:
    """Per cent of the texts on which each exit has the right label, and the original's prediction."""
    classifier = Classifier.from_pretrained(folder, "never")
    logits, _ = classifier.runner.engine.trace(classifier.runner.tokenizer(texts))
    predicted = logits.argmax(-1)  # (texts, exits)
    return {
        "accuracy": [100 * float(share) for share in (np.array(labels) == predicted.T).mean(1)],
        "same as transformers": [100 * float(share) for share in (reference == predicted.T).mean(1)],
    }


def layer_table(scores: dict[str, dict[str, list[float]]]) -> str:
    layers = range(len(next(iter(scores.values()))["accuracy"]))
    rows = [
        [f"{precision}, {name}", *(f"{value:.1f}" for value in values)]
        for precision, by_name in scores.items()
        for name, values in by_name.items()
    ]
    return markdown(["layer", *map(str, layers)], rows)


def table(results: list[dict[str, Any]]) -> str:
    rows = [
        [
            row["name"],
            f"{row['accuracy']:.1f}",
            f"{row['changed']:.1f}%",
            "" if np.isnan(row["mean_layer"]) else f"{row['mean_layer']:.2f}",
            f"{row['times_one_text']:.1f}",
            f"{row['times_in_batches']:.1f}",
        ]
        for row in results
    ]
    header = ["SST-2 dev", "accuracy", "changed", "mean layer", "times faster, one text", "in batches"]
    return markdown(header, rows)


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Times faster than transformers, for one text and in batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 0.55 * len(results) + 1.2), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(results))[::-1]
    one = [each["times_one_text"] for each in results]
    batch = [each["times_in_batches"] for each in results]
    axis.barh(places + 0.2, one, 0.38, label="one text at a time", color="#1b6ca8")
    axis.barh(places - 0.2, batch, 0.38, label="in batches", color="#9cc4e4")
    for place, each in zip(places, results, strict=True):
        axis.annotate(
            f" {each['times_one_text']:.1f}", (each["times_one_text"], place + 0.2), va="center", fontsize=8
        )
        axis.annotate(
            f" {each['times_in_batches']:.1f}",
            (each["times_in_batches"], place - 0.2),
            va="center",
            fontsize=8,
        )
    labels = [
        f"{each['name']}\naccuracy {each['accuracy']:.1f}, {each['changed']:.1f} % changed"
        for each in results
    ]
    axis.set_yticks(places, labels, fontsize=9)
    axis.set_xlabel("times faster than transformers")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, loc="upper right")  # the slow ones are at the top
    figure.savefig(file)


if __name__ == "__main__":
    main()
