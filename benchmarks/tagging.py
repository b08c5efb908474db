"""Retrofit a 12-layer tagger of named entities, and compare it with its rivals.

    python benchmarks/tagging.py ENCODER BTC --out runs/btc [--cut 6] [--tune] [--bf16]

A plain transformers tagger is fine-tuned on 3,500 texts of the Broad Twitter Corpus (BTC, a folder of CoNLL files);
`offramp retrofit` gets others without labels, and the 3,500 to learn from, also without labels: once with a guarantee
about changed texts and once about missed words, each as if it were the only one. All are scored on 1,500 others.
Rivals, in ONNX Runtime, scales from the same texts: the tagger at full depth, and the encoder cut at --cut layers,
fine-tuned on the same rows. With --tune, also retrofits that train the backbone. Contenders are timed in turns.
Finished steps in --out are reused. Writes tagging.json and prints Markdown.
"""

import argparse
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from seqeval.metrics import f1_score
from shared import about, export_full_depth, fine_tune_tagger, log, markdown

from offramp import Guarantee, NoSafeThreshold, Tagger, retrofit
from offramp.data.files import read_file
from offramp.inference.tagger import Span, find_spans
from offramp.inference.texts import BatchTokenizer
from offramp.inference.windows import WindowTokenizer
from offramp.measuring.speed import compare_speed
from offramp.retrofits.original import Original, load_original
from offramp.tags import TagScheme

LABELLED, SCORED = 3_500, 1_500
TAGS = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
RISKS = ("changed", "missed")

Tag = Callable[[Sequence[str]], Sequence[Sequence[Span]]]


@dataclass(frozen=True)
class Corpus:
    """Words and their tags, one list for each text."""

    words: list[list[str]]
    tags: list[list[str]]

    @property
    def texts(self) -> list[str]:
        return [" ".join(words) for words in self.words]

    def __getitem__(self, rows: slice) -> "Corpus":
        return Corpus(self.words[rows], self.tags[rows])


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    corpus, out = read_corpus(options.btc), options.out
    labelled, scored = corpus[:LABELLED], corpus[len(corpus.words) - SCORED :]
    others = corpus[LABELLED : len(corpus.words) - SCORED].texts[-options.texts :]

    def fine_tuned(name: str, **changes: Any) -> Original:
        log(f"fine-tuning {name}")
        names = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: n for n, tag in enumerate(TAGS)}}
        fine_tune_tagger(
            options.encoder,
            labelled.words,
            labelled.tags,
            out / name,
            seed=options.seed,
            bf16=options.bf16,
            config=names | changes,
        )
        return load_original(out / name)

    def retrofitted(risk: str, tune: bool) -> Any:
        name = f"{'tuned' if tune else 'fast'}-{risk}"
        os.environ["XDG_CACHE_HOME"] = str((out / f"cache-{name}").resolve())  # the attempts of each alone
        first = out / f"{'tuned' if tune else 'fast'}-{RISKS[0]}" / "work"
        if first.exists() and not (out / name).exists():  # the exits are the same
            shutil.copytree(first, out / name / "work")
            shutil.copy(first.with_name("settings.json"), out / name)
        target = Guarantee(options.guarantee, risk=risk)
        return retrofit(
            original_folder,
            others,
            out / name,
            target,
            learn_from=labelled.texts,
            data="BTC",
            tune=tune,
            log=log,
        )

    original = fine_tuned("gte-btc")
    original_folder = out / original.name
    contenders: dict[str, Tag] = {"transformers": partial(tag_by_original, original)}
    done, refused = {}, []
    for tune in (False, True) if options.tune else (False,):
        for risk in RISKS:
            name = f"offramp{' --tune' if tune else ''}, {risk}"
            try:
                done[name] = retrofitted(risk, tune)
            except NoSafeThreshold as refusal:
                refused.append(f"{name}: {refusal}")
    for precision in ("fp32", "int8"):
        contenders[f"ONNX {precision}, full depth"] = tagger(
            out / f"fast-{RISKS[0]}" / "work" / f"plain-{precision}", "never"
        )
    for layers in options.cut:
        cut = fine_tuned(f"cut-{layers}", num_hidden_layers=layers)
        folder = export_full_depth(cut, out / f"cut-{layers}-int8", "int8", others[:400])
        contenders[f"cut at layer {layers}, retrained, int8"] = tagger(folder, "never")
    for name, each in done.items():
        contenders[f"{name}, {each.results.precision}"] = tagger(each.folder)

    texts = scored.texts
    reference = contenders["transformers"](texts)
    speeds = compare_speed(contenders, texts)
    rows = []
    for name, tag in contenders.items():
        found, speed = tag(texts), speeds[name]
        rows.append(
            {
                "name": name,
                "entity_f1": 100 * f1_score(scored.tags, [*map(word_tags, scored.words, found)]),
                **differences(scored.words, reference, found),
                "mean_layer": float(np.mean([getattr(spans, "layer", np.nan) for spans in found])),
                "one_text": speed.single,
                "in_batches": speed.batch,
                "times_one_text": speed.times_faster_than(speeds["transformers"]).single,
                "times_in_batches": speed.times_faster_than(speeds["transformers"]).batch,
            }
        )
    record = {
        **about("torch", "transformers", "onnxruntime", threads=options.threads, others=len(others)),
        "scored": rows,
        "retrofits": {name: each.to_json() for name, each in done.items()},
        "refused": refused,
    }
    (out / "tagging.json").write_text(json.dumps(record, indent=1))
    print(*done.values(), *refused, table(rows), sep="\n\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("btc", type=Path, help="folder of the Broad Twitter Corpus: a.conll and others")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=4_339, help="texts without labels, at most 4,339")
    parser.add_argument(
        "--cut", type=int, nargs="+", default=[6], help="layers of the rivals that are cut and retrained"
    )
    parser.add_argument("--guarantee", type=float, default=0.02)
    parser.add_argument("--tune", action="store_true", help="also retrofit with a tuned backbone")
    parser.add_argument("--bf16", action="store_true", help="fine-tune in bf16, for processors that have it")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def read_corpus(folder: Path) -> Corpus:
    """All texts of a folder of CoNLL files, in an order that is random, and the same for everyone."""
    records = [cells for file in sorted(folder.glob("*.conll")) for _, cells in read_file(file).records]
    order = np.random.default_rng(0).permutation(len(records)).tolist()
    return Corpus([records[row][0] for row in order], [records[row][1] for row in order])


def tagger(folder: Path, policy: str | None = None) -> Tag:
    return Tagger.from_pretrained(folder, policy).tag


def tag_by_original(original: Original, texts: Sequence[str]) -> list[list[Span]]:
    """In transformers, in batches of similar length."""
    read = WindowTokenizer(BatchTokenizer(original.tokenizer, original.max_length))(texts)
    logits = iter(original.tag_logits([window for text in read for window in text.windows]))
    scheme = TagScheme(TAGS)
    return [
        find_spans(text, each.words, each.join([next(logits) for _ in each.windows]), scheme)
        for text, each in zip(texts, read, strict=True)
    ]


def word_starts(words: Sequence[str]) -> list[int]:
    """The offset of each word in the text."""
    return [0, *np.cumsum([len(word) + 1 for word in words]).tolist()][: len(words)]


def word_tags(words: Sequence[str], spans: Sequence[Span]) -> list[str]:
    """The tag of each word: that of the span which its first character is in."""
    tags, before = [], None
    for start in word_starts(words):
        inside = next((span for span in spans if span.start <= start < span.end), None)
        tags.append(f"{'I' if inside is before else 'B'}-{inside.label}" if inside else "O")
        before = inside
    return tags


def differences(
    words: Sequence[Sequence[str]], reference: Sequence[Sequence[Span]], found: Sequence[Sequence[Span]]
) -> dict[str, float]:
    """Per cent of the texts with another span, of those with a missed word, and of all words in spans."""
    changed, missed, marked = [], [], 0
    for old, new in zip(reference, found, strict=True):
        places = [[(span.start, span.end, span.label) for span in spans] for spans in (old, new)]
        changed.append(places[0] != places[1])
    for text, old, new in zip(words, reference, found, strict=True):
        tags = [word_tags(text, spans) for spans in (old, new)]
        marked += sum(tag != "O" for tag in tags[0])
        missed.append(sum(one != "O" and two == "O" for one, two in zip(*tags, strict=True)))
    return {
        "changed": 100 * float(np.mean(changed)),
        "with_missed": 100 * float(np.mean(np.array(missed) > 0)),
        "words_missed": 100 * sum(missed) / max(1, marked),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    full = next(row for row in rows if row["name"] == "ONNX int8, full depth")
    cells = [
        [
            row["name"],
            f"{row['entity_f1']:.1f}",
            f"{row['changed']:.1f}%",
            f"{row['with_missed']:.1f}%",
            f"{row['words_missed']:.1f}%",
            "" if np.isnan(row["mean_layer"]) else f"{row['mean_layer']:.2f}",
            f"{row['times_one_text']:.1f}",
            f"{row['times_in_batches']:.1f}",
            f"{full['one_text'] / row['one_text']:.1f}",
            f"{full['in_batches'] / row['in_batches']:.1f}",
        ]
        for row in rows
    ]
    header = [
        "BTC, 1,500 texts",
        "entity F1",
        "spans changed",
        "with a missed word",
        "words missed",
        "mean layer",
        "times transformers, one text",
        "in batches",
        "times int8 at full depth, one text",
        "in batches",
    ]
    return markdown(header, cells)


if __name__ == "__main__":
    main()
