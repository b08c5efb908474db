"""Retrofit a 12-layer tagger of named entities, and compare it with its rivals.

    python benchmarks/tagging.py ENCODER BTC --out runs/btc

A plain transformers tagger is fine-tuned on 3,500 texts of the Broad Twitter Corpus (BTC, a folder of CoNLL files).
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from shared import fine_tune_tagger, log

from offramp.data.files import read_file

LABELLED, SCORED = 3_500, 1_500
TAGS = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")


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
    corpus = read_corpus(options.btc)
    labelled = corpus[:LABELLED]
    for name, changes in {
        "gte-btc": {},
        **{f"cut-{n}": {"num_hidden_layers": n} for n in options.cut},
    }.items():
        log(f"fine-tuning {name}")
        config = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: n for n, tag in enumerate(TAGS)}}
        fine_tune_tagger(
            options.encoder,
            labelled.words,
            labelled.tags,
            options.out / name,
            seed=options.seed,
            bf16=options.bf16,
            config=config | changes,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("btc", type=Path, help="folder of the Broad Twitter Corpus: a.conll and others")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--cut", type=int, nargs="+", default=[6], help="layers of the rivals that are cut and retrained"
    )
    parser.add_argument("--bf16", action="store_true", help="fine-tune in bf16, for processors that have it")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def read_corpus(folder: Path) -> Corpus:
    """All texts of a folder of CoNLL files, in an order that is random, and the same for everyone."""
    records = [cells for file in sorted(folder.glob("*.conll")) for _, cells in read_file(file).records]
    order = np.random.default_rng(0).permutation(len(records)).tolist()
    return Corpus([records[row][0] for row in order], [records[row][1] for row in order])


if __name__ == "__main__":
    main()
