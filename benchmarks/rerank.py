"""Rerank the candidate sentences of WikiQA questions, and compare with full depth and with half a model.

    python benchmarks/rerank.py ENCODER WIKIQA --out runs/rerank [--time]

A plain transformers cross-encoder with one output is fine-tuned on the train questions that have an answer. Exits are
learned from train questions without one, and the rule is certified on the dev questions; neither needs labels. Each
list has the question's own candidates and, up to 100 in all, the best other sentences of its split by BM25. Measured
on the test questions that have an answer. Rivals: the cross-encoder in transformers, in ONNX Runtime int8, and cut at
half its layers and fine-tuned for longer on the same pairs. Finished steps in --out are reused. With --time the
contenders are timed in turns. Writes rerank.json and prints Markdown.
"""

import argparse
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from shared import about, export_full_depth, fine_tune, log, markdown
from transformers import set_seed

from offramp import (
    Classifier,
    ExitModel,
    Guarantee,
    Reranker,
    Task,
    Trace,
    calibrate,
    collect,
    export,
    store_policy,
    train,
)
from offramp.measuring.speed import time_in_turns
from offramp.models.heads import HeadConfig
from offramp.problems import Array
from offramp.retrofits.original import Original, load_original
from offramp.rules.rank import relevance
from offramp.training.recipes import frozen, mixed

LIST = 100
LEARN_QUESTIONS, LEARN_DOCUMENTS = 1200, 40
NEGATIVES = 3
"""For each train question: as many of its own, and as many of the best others by BM25."""
TIMED = 20
"""Questions to time."""
HALF_EPOCHS = 3
"""Epochs of the rival that is cut: with one it has hardly learned anything."""

TrainingPair = tuple[str, str, float]


@dataclass(frozen=True)
class Question:
    text: str
    documents: list[str]
    relevant: list[bool]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.text, document) for document in self.documents]


@dataclass(frozen=True)
class Contender:
    name: str
    scores: Array
    """(documents of all test questions,)"""
    layer: float
    """Where the scores come from, on average."""
    rank: Callable[[Question], Any]


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    splits = {name: read(options.wikiqa / f"{name}.tsv") for name in ("train", "dev", "test")}
    pairs, learn = training_pairs(splits["train"]), learning_lists(splits["train"])
    dev = candidate_lists(splits["dev"], splits["dev"])
    test = candidate_lists([each for each in splits["test"] if any(each.relevant)], splits["test"])

    original = fine_tuned(options, pairs, options.out / "cross-encoder", options.epochs)
    folder = with_exits(options, original, learn)
    calibration = traced(folder, dev, options.out / f"dev-{variant(options)}.trace")
    target = Guarantee(options.guarantee, risk="overlap")
    policy = calibrate(calibration.grouped(queries_of(dev)), "rank", target).policy
    store_policy(folder, policy)
    assert policy.certificate is not None
    log(policy.certificate.summary)

    trace = traced(folder, test, options.out / f"test-{variant(options)}.trace")
    full_depth = relevance(trace.logits[:, -1])
    lists = trace.grouped(queries_of(test))
    scores = relevance(stored(options.out / "original.npy", lambda: original.logits(pairs_of(test))))
    precision, layers = options.precision, trace.layers[-1]

    def in_one_graph(name: str, model: Original) -> Contender:
        graph = exported(options, model, learn)
        found = relevance(stored(graph.with_suffix(".npy"), partial(logits_of, graph, test)))
        return Contender(name, found, model.model.config.num_hidden_layers, ranker(graph))

    def with_rule(name: str, exact_top: bool) -> Contender:
        decision = (policy.with_exact_top() if exact_top else policy).decide_trace(lists, target.top_k)
        layer = float(np.asarray(trace.layers)[decision.exits].mean())
        return Contender(name, relevance(decision.logits), layer, ranker(folder, exact_top=exact_top))

    contenders = [
        Contender("transformers", scores, layers, lambda each: original.logits(each.pairs)),
        in_one_graph(f"ONNX Runtime {precision}", original),
        Contender(f"offramp {precision}, full depth", full_depth, layers, ranker(folder, "never")),
        with_rule(f"offramp {precision}", exact_top=False),
        with_rule(f"offramp {precision}, `exact_top`", exact_top=True),
    ]
    if options.half:
        half = fine_tuned(options, pairs, options.out / "half", HALF_EPOCHS, options.half)
        contenders.insert(2, in_one_graph(f"{options.half} layers, retrained, {precision}", half))
    results = [measure(each, test, scores, full_depth) for each in contenders]
    if options.time:
        timed = test[:: len(test) // TIMED]
        for each in contenders:
            each.rank(timed[0])  # warm-up
        seconds = time_in_turns(
            {each.name: partial(rank_next, each.rank, iter(timed)) for each in contenders}, len(timed)
        )
        results = [row | {"milliseconds": 1000 * seconds[row["name"]]} for row in results]
    record = {
        **about(threads=options.threads),
        "certificate": policy.certificate.to_json(),
        "results": results,
    }
    (options.out / "rerank.json").write_text(json.dumps(record, indent=1))
    print(f"{table(results)}\n\n{policy.certificate.summary}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("wikiqa", type=Path, help="folder with train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--half", type=int, default=6, help="layers of the rival that is cut; 0 for none")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="int8")
    parser.add_argument(
        "--guarantee", type=float, default=0.05, help="of the share of the top 10 that is missed"
    )
    parser.add_argument(
        "--time", action="store_true", help="time the contenders, on an otherwise idle machine"
    )
    parser.add_argument(
        "--tune", action="store_true", help="train the backbone with the exits, not the exits alone"
    )
    parser.add_argument("--bf16", action="store_true", help="fine-tune in bfloat16, where the CPU has it")
    return parser.parse_args()


def read(file: Path) -> list[Question]:
    """The questions with their own candidates; of a sentence that is given twice, the best label counts."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for line in file.read_text(encoding="utf-8").splitlines():
        question, sentence, label = line.split("\t")
        found[question][sentence] = label == "1" or found[question].get(sentence, False)
    return [Question(text, [*own], [*own.values()]) for text, own in found.items()]


class BM25:
    """Okapi BM25 over sentences."""

    def __init__(self, sentences: Iterable[str], k1: float = 1.2, b: float = 0.75) -> None:
        self.sentences = [*dict.fromkeys(sentences)]
        counts = [Counter(words(sentence)) for sentence in self.sentences]
        lengths = np.array([sum(each.values()) for each in counts])
        rows, weights = defaultdict(list), defaultdict(list)
        for row, each in enumerate(counts):
            norm = k1 * (1 - b + b * lengths[row] / lengths.mean())
            for word, times in each.items():
                rows[word].append(row)
                weights[word].append(times * (k1 + 1) / (times + norm))
        self.rows, self.weights = rows, weights

    def best_first(self, query: str) -> list[str]:
        scores = np.zeros(len(self.sentences))
        for word in {*words(query)} & self.rows.keys():
            rows = self.rows[word]
            rarity = math.log(1 + (len(self.sentences) - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += rarity * np.array(self.weights[word])
        return [self.sentences[row] for row in np.argsort(-scores, kind="stable").tolist()]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def candidate_lists(questions: Sequence[Question], every: Sequence[Question]) -> list[Question]:
    """Each with its own candidates and the best others, in the order of BM25."""
    index, lists = BM25(sentence for each in every for sentence in each.documents), []
    for each in questions:
        label = dict(zip(each.documents, each.relevant, strict=True))
        ranked = index.best_first(each.text)
        others = [sentence for sentence in ranked if sentence not in label][: LIST - len(label)]
        chosen = {*label, *others}
        documents = [sentence for sentence in ranked if sentence in chosen]
        lists.append(Question(each.text, documents, [label.get(each, False) for each in documents]))
    return lists


def learning_lists(train: Sequence[Question]) -> list[Question]:
    """Some documents of questions without an answer, on which the cross-encoder has not been trained."""
    chance = random.Random(1)
    questions = chance.sample([each for each in train if not any(each.relevant)], LEARN_QUESTIONS)
    lists = []
    for each in candidate_lists(questions, train):
        documents = chance.sample(each.documents, LEARN_DOCUMENTS)
        lists.append(Question(each.text, documents, [False] * len(documents)))
    return lists


def training_pairs(train: Sequence[Question]) -> list[TrainingPair]:
    """The right sentences of the questions that have one, with some wrong ones of each question."""
    index, chance = BM25(sentence for each in train for sentence in each.documents), random.Random(0)
    pairs = []
    for each in train:
        if not any(each.relevant):
            continue
        own = [sentence for sentence, right in zip(each.documents, each.relevant, strict=True) if not right]
        hard = [text for text in index.best_first(each.text)[:30] if text not in each.documents]
        wrong = [*chance.sample(own, min(NEGATIVES, len(own))), *chance.sample(hard, NEGATIVES)]
        right = [sentence for sentence, right in zip(each.documents, each.relevant, strict=True) if right]
        pairs += [(each.text, sentence, 1.0) for sentence in right]
        pairs += [(each.text, sentence, 0.0) for sentence in wrong]
    return pairs


def fine_tuned(
    options: argparse.Namespace,
    pairs: Sequence[TrainingPair],
    out: Path,
    epochs: float,
    layers: int | None = None,
) -> Original:
    """A plain cross-encoder; the logit of the only output is trained to be that of being relevant."""
    *texts, labels = zip(*pairs, strict=True)
    config = {"num_labels": 1} | ({} if layers is None else {"num_hidden_layers": layers})
    fine_tune(
        options.encoder,
        texts,
        labels,
        out,
        seed=options.seed,
        epochs=epochs,
        bf16=options.bf16,
        loss=binary_loss,
        config=config,
    )
    return load_original(out)


def binary_loss(outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    logits: torch.Tensor = outputs.logits.float().squeeze(-1)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())


def with_exits(options: argparse.Namespace, original: Original, learn: Sequence[Question]) -> Path:
    """The folder of the cross-encoder with exits, learned and exported as by `offramp retrofit`."""
    folder: Path = options.out / variant(options)
    if not folder.exists():
        set_seed(options.seed)
        texts = pairs_of(learn)
        arguments = {
            "output_dir": options.out / f"work-{variant(options)}",
            "seed": options.seed,
            "eval_strategy": "no",
            "load_best_model_at_end": False,
            "report_to": "none",
            "logging_strategy": "no",
            "disable_tqdm": True,
            **({"num_train_epochs": 1} if options.tune else {}),
        }
        trained = train(
            ExitModel.from_encoder(original.model, head=HeadConfig(pooling="pair")),
            Task.from_dataset(
                pair_columns(texts), problem_type="regression", unlabelled=["train"], name="pairs"
            ),
            mixed(fine_tune=False) if options.tune else frozen(),
            arguments,
            tokenizer=original.tokenizer,
            max_length=original.max_length,
        )
        log(f"exporting in {options.precision}")
        export(trained.folder, folder, options.precision, texts=texts)
    return folder


def variant(options: argparse.Namespace) -> str:
    return f"{'tuned-' if options.tune else ''}{options.precision}"


def exported(options: argparse.Namespace, model: Original, learn: Sequence[Question]) -> Path:
    """The folder of a rival, exported as one graph."""
    layers = model.model.config.num_hidden_layers
    folder = options.out / f"rival-{layers}-{options.precision}"
    return export_full_depth(model, folder, options.precision, pairs_of(learn))


def pairs_of(questions: Sequence[Question]) -> list[Any]:
    return [pair for each in questions for pair in each.pairs]


def pair_columns(pairs: Sequence[tuple[str, str]]) -> Dataset:
    return Dataset.from_dict(
        {"text": [query for query, _ in pairs], "text_pair": [document for _, document in pairs]}
    )


def queries_of(questions: Sequence[Question]) -> list[str]:
    return [query for query, _ in pairs_of(questions)]


def traced(folder: Path, questions: Sequence[Question], file: Path) -> Trace:
    """The logits of every exit, reused if they were computed before."""
    if not file.exists():
        log(f"running every exit for {file.stem}")
        classifier = Classifier.from_pretrained(folder, "never", threads=torch.get_num_threads())
        collect(
            classifier,
            pair_columns(pairs_of(questions)),
            data=f"WikiQA {file.stem.partition('-')[0]} questions",
            progress=False,
        ).save(file)
    return Trace.load(file)


def logits_of(folder: Path, questions: Sequence[Question]) -> Array:
    classifier = Classifier.from_pretrained(folder, "never", threads=torch.get_num_threads())
    return classifier.runner.decide(pairs_of(questions)).logits


def stored(file: Path, compute: Callable[[], Array]) -> Array:
    """What `compute` gives, reused if it was computed before."""
    if not file.exists():
        log(f"computing {file.stem}")
        np.save(file, compute())
    found: Array = np.load(file)
    return found


def ranker(folder: Path, policy: str | None = None, exact_top: bool = False) -> Callable[[Question], Any]:
    """Ranks with the policy stored in the folder, or with this one."""
    reranker = Reranker.from_pretrained(folder, policy, threads=torch.get_num_threads())
    return lambda each: reranker.rank(each.text, each.documents, exact_top=exact_top)


def measure(
    each: Contender, questions: Sequence[Question], original: Array, full_depth: Array
) -> dict[str, Any]:
    """Means over questions."""
    rows, first = [], 0
    for question in questions:
        part = slice(first, first + len(question.documents))
        scores = each.scores[part]
        overlaps = {
            "overlap": overlap(scores, original[part]),
            "own_overlap": overlap(scores, full_depth[part]),
        }
        rows.append(list_scores(np.array(question.relevant), scores) | overlaps)
        first = part.stop
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {"name": each.name, **means, "layer": float(each.layer)}


def list_scores(relevant: Array, scores: Array) -> dict[str, float]:
    hits = np.flatnonzero(
        relevant[np.argsort(-scores, kind="stable")]
    )  # the ranks of right sentences, from 0
    gains = 1 / np.log2(np.arange(2, 12))
    return {
        "mrr": float(1 / (1 + hits[0])) if hits[0] < 10 else 0.0,
        "map": float((np.arange(1, 1 + len(hits)) / (1 + hits)).mean()),
        "ndcg": float(gains[hits[hits < 10]].sum() / gains[: len(hits)].sum()),
    }


def overlap(scores: Array, reference: Array) -> float:
    tops = [{*np.argsort(-each, kind="stable")[:10].tolist()} for each in (scores, reference)]
    return len(set.intersection(*tops)) / 10


def rank_next(rank: Callable[[Question], Any], questions: Iterator[Question]) -> None:
    rank(next(questions))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    header = ["", "MRR@10", "MAP", "nDCG@10", "overlap@10 with transformers", "with offramp at full depth"]
    rows = []
    for row in results:
        scores = [f"{100 * row[key]:.1f}" for key in ("mrr", "map", "ndcg")]
        overlaps = [f"{row['overlap']:.3f}", f"{row['own_overlap']:.3f}"]
        time = f"{row['milliseconds']:.0f}" if "milliseconds" in row else ""
        rows.append([row["name"], *scores, *overlaps, f"{row['layer']:.2f}", time])
    return markdown([*header, "mean layer", "ms per query"], rows)


if __name__ == "__main__":
    main()
