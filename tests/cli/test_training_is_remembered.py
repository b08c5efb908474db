"""A model remembers what it was trained on: the length of texts, texts or pairs, and which rows."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from offramp.errors import BadData, CertificateMismatch
from offramp.inference import Classifier
from offramp.onnx_export import export
from offramp.trace import Trace

Run = Callable[..., Result]
LENGTH = 9


@pytest.fixture(scope="module")
def short(trained: Path, tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """A folder with the run `short`, trained on texts of up to nine tokens, and `long.csv`."""
    home = tmp_path_factory.mktemp("short")
    done = run(
        *("train", trained / "encoder", "--train", trained / "train.csv", "--out", home / "short"),
        *("--max-length", LENGTH, "--epochs", 3, "--lr", 5e-3, "--batch-size", 8),
        *("--recipe", "pabee", "--argument", "report_to=none"),
    )
    assert done.exit_code == 0, done.output
    starts = [f"{'good ' * (row % 5)}{'bad ' * (row % 3)}" for row in range(40)]
    lines = [f"{start}{'a film ' * 15}{row},{['no', 'yes'][row % 2]}" for row, start in enumerate(starts)]
    (home / "long.csv").write_text("\n".join(["text,label", *lines]))
    export(home / "short/model", home / "onnx")
    return home


@pytest.mark.parametrize("model", ["short", "onnx"])
def test_the_length_of_training_is_that_of_every_later_command(
    short: Path, tmp_path: Path, run: Run, model: str
) -> None:
    out = tmp_path / "x.trace"
    assert run("trace", short / model, "--data", short / "long.csv", "--out", out).exit_code == 0
    trace = Trace.load(out)
    assert (trace.max_length, set(trace.lengths.tolist())) == (LENGTH, {LENGTH})
    assert Classifier.from_pretrained(short / model).runner.tokenizer.max_length == LENGTH
    longer = run(
        *("trace", short / model, "--data", short / "long.csv", "--out", out, "--force", "--max-length", 20)
    )
    assert longer.exit_code == 0
    assert Trace.load(out).max_length == 20


def test_a_certificate_holds_for_one_length_of_texts(short: Path, tmp_path: Path, run: Run) -> None:
    folder = Path(shutil.copytree(short / "short/model", tmp_path / "model"))
    data = ["--data", short / "long.csv"]
    run("trace", folder, *data, "--out", tmp_path / "nine.trace")
    run("trace", folder, *data, "--max-length", 20, "--out", tmp_path / "twenty.trace")
    refused = run("calibrate", folder, tmp_path / "twenty.trace", "--rule", "layer", "--guarantee", 0.9)
    assert refused.exit_code == 1
    assert "texts of up to 20 tokens, not the 9 of" in refused.stderr
    done = run("calibrate", folder, tmp_path / "nine.trace", "--rule", "layer", "--guarantee", 0.9)
    assert done.exit_code == 0, done.output
    assert Classifier.from_pretrained(folder).runner.policy.certificate.conditions.max_length == LENGTH  # type: ignore[union-attr]
    with pytest.warns(CertificateMismatch, match=r"max_length 9 \(here: 20\)"):
        assert Classifier.from_pretrained(folder, max_length=20).runner.policy.certificate is None


@pytest.mark.parametrize("runtime", ["short/model", "onnx"])
def test_a_model_of_single_texts_refuses_pairs_and_the_reverse(
    short: Path, tmp_path: Path, run: Run, runtime: str
) -> None:
    with pytest.raises(BadData, match="item 0 is a pair of texts, but the model was trained on single texts"):
        Classifier.from_pretrained(short / runtime).predict([("a film", "a plot")])
    (tmp_path / "pairs.csv").write_text("text,text_pair,label\na film,a plot,yes\n")
    data = ["--data", tmp_path / "pairs.csv", "--out", tmp_path / "x.trace"]
    assert "is a pair of texts" in run("trace", short / runtime, *data).stderr
    folder = Path(shutil.copytree(short / "short/model", tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"trained_on_pairs": True}))
    with pytest.raises(BadData, match="is a single text, but the model was trained on pairs"):
        Classifier.from_pretrained(folder).predict("a film")
    (folder / "config.json").write_text(json.dumps(config | {"trained_on_pairs": None}))
    Classifier.from_pretrained(folder).predict([("a film", "a plot")])


@pytest.mark.parametrize("model", ["short", "onnx"])
def test_calibrating_on_training_rows_is_refused(
    short: Path, trained: Path, tmp_path: Path, run: Run, model: str
) -> None:
    folder = Path(shutil.copytree(short / model, tmp_path / "copy"))
    spaced = (trained / "train.csv").read_text().replace("film", " FILM")  # the same to a reader
    (tmp_path / "again.csv").write_text(spaced)
    out = tmp_path / "x.trace"
    assert run("trace", folder, "--data", tmp_path / "again.csv", "--out", out).exit_code == 0
    assert Trace.load(out).trained_on.all()  # type: ignore[union-attr]
    asked = ["calibrate", folder, out, "--rule", "entropy", "--guarantee", 0.5]
    refused = run(*asked)
    assert refused.exit_code == 1
    assert "trained on 40 of the 40 rows" in refused.stderr
    assert "--allow-training-rows." in refused.stderr
    unproven = run(*asked, "--allow-training-rows")
    assert unproven.exit_code == 3
    assert "0 distinct unseen texts cannot prove" in unproven.stderr
    allowed = run("calibrate", folder, out, "--rule", "entropy", "--max-loss", 50, "--allow-training-rows")
    assert allowed.exit_code == 0, allowed.output
    assert "warning: the model was trained on 40 of the 40 rows" in allowed.stderr


def test_held_out_rows_are_not_mistaken_for_training_rows(trained: Path) -> None:
    known = Trace.load(trained / "dev.trace").trained_on
    assert known is not None
    assert not np.asarray(known).any()
