"""Other libraries tag texts as `Tagger` does, with portable folders: programs of docs/other-languages.md."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offramp import ExitModel, Tagger
from offramp.inference.windows import WindowedText
from offramp.numerics import Array, entropy, softmax
from offramp.onnx_export import export
from offramp.onnx_export.portable import write_portable
from offramp.reports.stored_policy import store_policy

Run = Callable[..., list[str]]
Programs = Mapping[str, str]
TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
TEXTS = ["good film", "a b c d e f", "bad", "film bad a b", "i j k"]


@pytest.fixture(scope="module")
def folders(
    tiny_tagger: Callable[..., Any],
    tokenizer: Any,
    precision: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """An exported tagger whose texts exit at several layers, and its portable folder."""
    home = tmp_path_factory.mktemp("tagger")
    model = ExitModel.from_encoder(tiny_tagger("bert", layers=3, labels=TAGS)).eval()
    torch.manual_seed(7)
    for head in model.heads.classifiers[:-1]:
        torch.nn.init.normal_(head.weight, std=0.5)
    export(model, home / "own", precision, tokenizer, texts=TEXTS)
    found = Tagger.from_pretrained(home / "own")
    unsure = [
        entropy(logits).max() for each in found.tokenizer(TEXTS) for logits in first_logits(found, each)
    ]
    store_policy(home / "own", f"entropy:{np.mean(np.sort(unsure)[1:3])}")
    write_portable(home / "own", home / "portable")
    return home / "own", home / "portable"


def first_logits(tagger: Tagger, text: WindowedText) -> list[Array]:
    logits, _ = tagger.runner.engine.trace(text.windows)
    return [logits[text.inner[0], 0]]


def expected_tags(tagger: Tagger) -> tuple[list[list[tuple[str, float]]], list[int]]:
    """The tag and score of each token that is not special, and the layer of each text."""
    found, layers = [], []
    for read in tagger.tokenizer(TEXTS):
        decision = tagger.runner.engine.run(read.windows, tagger.runner.policy)
        chances = softmax(decision.logits[read.inner[0]])
        found.append([(TAGS[row.argmax()], float(row.max())) for row in chances])
        layers.append(tagger.runner.runtime.info.exits[decision.exits[0]])
    assert len({*layers}) > 1
    return found, layers


def test_transformers_js_tags_as_the_tagger(
    node: Run, programs: Programs, folders: tuple[Path, Path]
) -> None:
    piped, layers = map(json.loads, node(programs["tag.mjs"], folders[1], *TEXTS))
    tags, expected = expected_tags(Tagger.from_pretrained(folders[0]))
    assert layers == expected
    for every, wanted in zip(piped, tags, strict=True):
        # the tokenizer of these tests does not call its special tokens so
        tokens = [each for each in every if each["word"] not in ("[CLS]", "[SEP]", "[PAD]")]
        assert [each["entity"] for each in tokens] == [tag for tag, _ in wanted]
        assert [each["score"] for each in tokens] == pytest.approx([score for _, score in wanted], abs=1e-3)


def test_plain_onnxruntime_tags_as_the_tagger(
    python: Run, programs: Programs, folders: tuple[Path, Path]
) -> None:
    found = [json.loads(line) for line in python(programs["tag.py"], folders[1], *TEXTS)]
    tags, layers = expected_tags(Tagger.from_pretrained(folders[0]))
    assert [each["layer"] for each in found] == layers
    for text, each, wanted in zip(TEXTS, found, tags, strict=True):
        assert each["tags"] == [[word, tag] for word, (tag, _) in zip(text.split(), wanted, strict=True)]
