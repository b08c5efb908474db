"""The demo, on a tiny encoder and a few rows, offline."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import demo
import pytest

from offramp import Classifier

QUICK = demo.Settings(train=100, held_out=60, epochs=1, learning_rate=5e-3, guarantee=0.3, replacement=0.6)


@pytest.fixture(scope="module")
def inputs(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[..., Any], tokenizer: Any
) -> dict[str, Path]:
    """An encoder, and sentences as the package has them, from two sources."""
    home = tmp_path_factory.mktemp("demo")
    with (home / "reviews.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "source"])
        for row in range(600):
            words = ("a very good film " if row % 2 else "not a good film ") + " ".join(f"{row:b}")
            table.writerow([words, row % 2, "rotten_tomatoes" if row % 3 else "imdb"])
    tiny_encoder("bert", layers=2, initializer_range=0.05).save_pretrained(home / "encoder")
    tokenizer.save_pretrained(home / "encoder")
    return {"encoder": home / "encoder", "sentences": home / "reviews.csv", "out": home / "out"}


@pytest.fixture(scope="module")
def done(inputs: dict[str, Path]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offramp.measuring.speed.REPEATS", 1)
        return demo.run(**inputs, settings=QUICK)


def test_the_demo_compares_plain_transformers_onnx_int8_and_offramp(done: Any) -> None:
    names = [row.name for row in done.results.comparison]
    assert names == ["transformers", "fp32, full depth", "int8, full depth", "offramp"]
    assert all(0 <= row.scores["acc"] <= 1 for row in done.results.comparison)
    certificate = done.results.certificate
    assert certificate.reference == "my-classifier"
    assert certificate.summary in str(done)
    assert Classifier.from_pretrained(done.folder).predict("a very good film").label in (
        "negative",
        "positive",
    )


def test_texts_of_the_retrofit_were_not_used_for_fine_tuning(inputs: dict[str, Path], done: Any) -> None:
    labelled, others, held_out = demo.split(inputs["sentences"], QUICK)
    assert [len(labelled), len(others), len(held_out)] == [100, 240, 60]
    assert len({*labelled, *others, *held_out}) == 400
    assert sum(done.results.examples.values()) == 240
    assert (labelled, others, held_out) == demo.split(inputs["sentences"], QUICK)


def test_the_last_line_says_whether_one_model_may_replace_the_other(
    inputs: dict[str, Path], done: Any
) -> None:
    assert demo.certify(inputs["out"], QUICK) == (
        "proven: With 95% confidence, at most 60% of predictions differ from my-classifier "
        "(on data like held-out.csv)."
    )


def test_a_second_run_reuses_the_first(
    inputs: dict[str, Path], done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.Trainer.train", forbidden)
    assert demo.run(**inputs, settings=QUICK).results == done.results


def forbidden(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("repeated work")
