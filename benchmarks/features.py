"""Measures disk and memory of training heads on stored features.

    python benchmarks/features.py --texts 100000

A random encoder of 12 layers and width 384 gets 13 exits, and `frozen` trains them on made-up texts of a few words.
Its feed-forward layers are narrow, because only the features matter here. Prints JSON: the largest file and the peak
memory of the process, and what of it the process had before training.
"""

import argparse
import json
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from datasets import Dataset
from shared import about
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

from offramp import ExitModel, Task, train
from offramp.training.recipes import frozen

WORDS = [f"w{number}" for number in range(1000)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--epochs", type=float, default=2)
    options = parser.parse_args()
    set_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = made_up_task(folder, options.texts)
        config = BertConfig(
            vocab_size=len(WORDS) + 1,
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=1,
            intermediate_size=8,
        )
        model = ExitModel.from_encoder(BertModel(config), num_labels=2, exits=list(range(13)))
        model.config.fine_tuned = True  # as if the last exit were trained
        arguments = {
            "output_dir": folder / "run",
            "report_to": "none",
            "eval_strategy": "no",
            "load_best_model_at_end": False,
        }
        before, start = peak_memory(), time.perf_counter()
        largest = LargestFile(folder / "run")
        train(model, task, frozen(epochs=options.epochs), arguments, tokenizer=word_tokenizer())
        found = {
            **about(),
            "texts": options.texts,
            "gigabytes_on_disk": round(largest.stop() / 1e9, 2),
            "gigabytes_of_memory": round(peak_memory(), 2),
            "before_training": round(before, 2),
            "minutes": round((time.perf_counter() - start) / 60, 1),
        }
    print(json.dumps(found))


def made_up_task(folder: Path, texts: int) -> Task:
    draw = np.random.default_rng(0)
    rows = [" ".join(WORDS[word] for word in words) for words in draw.integers(0, len(WORDS), (texts, 4))]
    file = folder / "train.csv"
    Dataset.from_dict({"text": rows, "label": draw.integers(0, 2, texts).tolist()}).to_csv(file)
    return Task.from_files(train=file)


def word_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"[PAD]": 0} | {word: index for index, word in enumerate(WORDS, start=1)}
    rust = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=rust, pad_token="[PAD]", model_max_length=512)


def peak_memory() -> float:
    """The memory of this process, in gigabytes. Pages of the memory-mapped file count while they are in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class LargestFile:
    """Watches a folder: the most bytes that its files of features had together."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes, self.done = folder, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        while not self.done.wait(0.2):
            sizes = [file.stat().st_size for file in self.folder.rglob("*.npy*") if file.exists()]
            self.bytes = max(self.bytes, sum(sizes))

    def stop(self) -> int:
        self.done.set()
        self.thread.join()
        return self.bytes


if __name__ == "__main__":
    main()
