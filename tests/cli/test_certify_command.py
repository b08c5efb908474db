"""offramp certify: files, models, verdicts as exit codes, and rows that cannot be compared."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from typer.testing import Result

Run = Callable[..., Result]
ROWS = 400


def write(file: Path, changed: int = 0, **columns: Any) -> Path:
    """A file of predictions, of which some of the spam has become ham; further columns are lists."""
    labels = ["ham" if row % 2 or row < 2 * changed else "spam" for row in range(ROWS)]
    cells: dict[str, Any] = {"id": range(ROWS), "label": labels} | columns
    lines = [
        ",".join(map(str, row))
        for row in zip(*(column for column in cells.values() if column is not None), strict=True)
    ]
    header = ",".join(name for name, column in cells.items() if column is not None)
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(tmp_path / "old.csv")


@pytest.mark.parametrize(
    ("changed", "code", "verdict"), [(0, 0, "proven"), (4, 3, "undecided"), (40, 3, "refuted")]
)
def test_the_exit_code_is_the_verdict(
    changed: int, code: int, verdict: str, old: Path, tmp_path: Path, run: Run
) -> None:
    new = write(tmp_path / "new.csv", changed)
    done = run("certify", old, new, "--guarantee", 0.02, "--json")
    assert done.exit_code == code
    made = json.loads(done.stdout)
    assert (made["verdict"], made["proven"]) == (verdict, code == 0)
    (claim,) = made["claims"]
    (evidence,) = claim["evidence"]
    assert (evidence["examples"], evidence["observed"]) == (ROWS, changed / ROWS)
    assert (claim["certificate"] is None) == (code != 0)
    assert (claim["more_rows"] == 0) == (verdict != "undecided")
    assert made["by_class"][1] == {"name": "spam", "rows": ROWS // 2, "different": changed}


def test_people_read_the_verdict_first_and_then_the_evidence(old: Path, tmp_path: Path, run: Run) -> None:
    lines = run("certify", old, write(tmp_path / "new.csv", 1)).stdout.splitlines()
    assert lines[:4] == [
        "proven: With 95% confidence, at most 2% of predictions differ from old.csv (on data like old.csv and "
        "new.csv).",
        "observed: 1 of 400 rows, 0.25% (95% interval 0% to 1.39%)",
        "smallest provable bound: 1.19%",
        "rows are taken as independent; without texts, repeated ones cannot be seen",
    ]
    lines = run("certify", old, write(tmp_path / "new.csv", 4)).stdout.splitlines()
    assert lines[0].startswith(
        "not proven with 95% confidence: at most 2% of predictions differ from old.csv"
    )
    assert "a verdict on 2% needs about" in lines[2]
    lines = run("certify", old, write(tmp_path / "new.csv", 40)).stdout.splitlines()
    assert lines[0].startswith("refuted: with 95% confidence it is false that at most 2%")


def test_rows_are_joined_by_id_whatever_their_order(old: Path, tmp_path: Path, run: Run) -> None:
    new = tmp_path / "new.csv"
    header, *lines = old.read_text(encoding="utf-8").splitlines()
    new.write_text("\n".join([header, *lines[::-1]]), encoding="utf-8")
    assert run("certify", old, new).exit_code == 0
    for file in (old, new):
        file.write_text(file.read_text(encoding="utf-8").replace("id,", "number,"), encoding="utf-8")
    assert run("certify", old, new).exit_code == 3
    assert run("certify", old, new, "--id", "number").exit_code == 0


def test_a_risk_with_two_bounds_is_refused(old: Path, run: Run) -> None:
    refused = run("certify", old, old, "--guarantee", "missed=0.01,missed=0.5", "--decide", "spam>=0.5")
    assert refused.exit_code == 2
    assert "names a risk twice" in refused.stderr


def test_scores_are_decided_about_at_the_operating_point(tmp_path: Path, run: Run) -> None:
    scores = np.linspace(0, 1, ROWS)
    old, new = (
        write(tmp_path / f"{name}.csv", probability_ham=1 - each, probability_spam=each)
        for name, each in (("old", scores), ("new", np.where((scores > 0.85) & (scores < 0.95), 0.8, scores)))
    )
    assert run("certify", old, new).exit_code == 0  # the labels are equal
    at = ["--decide", "spam>=0.9"]
    assert run("certify", old, new, *at).exit_code == 3
    assert run("certify", old, new, *at, "--risk", "false_alarm").exit_code == 0
    both = run("certify", old, new, *at, "--guarantee", "missed=0.9,false_alarm=0.02", "--json")
    assert both.exit_code == 0, both.output
    assert [claim["risk"] for claim in json.loads(both.stdout)["claims"]] == ["missed", "false_alarm"]
    score = ["--risk", "score", "--guarantee", 0.2, "--tolerance"]
    assert run("certify", old, new, *score, 0.01).exit_code == 0
    assert run("certify", old, new, *score, 0.01, "--guarantee", 0.02).exit_code == 3


def test_numbers_have_a_tolerance_or_a_cut(tmp_path: Path, run: Run) -> None:
    numbers = np.linspace(0, 5, ROWS)
    files = [
        write(tmp_path / f"{name}.csv", label=None, score=each)
        for name, each in (("old", numbers), ("new", numbers + 0.1))
    ]
    assert run("certify", *files, "--tolerance", 0.2).exit_code == 0
    assert run("certify", *files, "--tolerance", 0.05).exit_code == 3
    assert run("certify", *files, "--decide", "score>=2.5", "--guarantee", 0.05).exit_code == 0


def test_correct_labels_come_from_a_column_of_either_file(tmp_path: Path, run: Run) -> None:
    truth = ["ham" if row % 2 else "spam" for row in range(ROWS)]
    old, new = write(tmp_path / "old.csv", truth=truth), write(tmp_path / "new.csv", 20)
    options = ["--risk", "accuracy_drop", "--label", "truth", "--guarantee"]
    assert run("certify", old, new, *options, 0.2).exit_code == 0
    assert run("certify", old, new, *options, 0.02).exit_code == 3
    assert run("certify", new, old, *options, 0.02).exit_code == 0  # it gains


def test_jsonl_files_of_predict_are_read(tmp_path: Path, run: Run) -> None:
    for name in ("old", "new"):
        rows = [
            {"label": "spam", "score": 0.9, "probabilities": {"ham": 0.1, "spam": 0.9}, "text": f"text {row}"}
            for row in range(ROWS)
        ]
        lines = map(json.dumps, rows)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    files = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    assert run("certify", *files, "--decide", "spam>=0.5").exit_code == 0
    assert "independent" not in run("certify", *files).stdout  # no text is repeated


def test_repeated_texts_of_files_are_counted_once_too(tmp_path: Path, run: Run) -> None:
    texts = [f"text {row // 8}" for row in range(ROWS)]
    files = [write(tmp_path / f"{name}.csv", text=texts) for name in ("old", "new")]
    done = run("certify", *files, "--guarantee", 0.05)
    assert done.exit_code == 2
    assert "50 distinct texts cannot prove" in done.stderr
    done = run("certify", *files, "--guarantee", 0.06)
    assert done.exit_code == 0
    assert "350 rows (88%) repeat a text" in done.stdout


def swap(file: Path, line: int, text: str | None) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


BAD_ROWS = {
    "an id that does not match": ((402, "x,spam"), "new.csv, line 402: {old} has no row with the id 'x'", []),
    "a missing row": ((7, None), "old.csv, line 7: {new} has no row with the id '5'", []),
    "a duplicated row": ((7, "4,spam"), "new.csv, line 7: the id '4' is also in line 6", []),
    "an unknown label": ((7, "5,sapm"), "new.csv, line 7: the label 'sapm' is never in {old}", []),
    "no label": ((7, "5,"), "new.csv, line 7: no label", []),
    "too many cells": ((7, "5,spam,1"), "new.csv, line 7: expected 2 columns, found 3", []),
    "a label that is not listed": (
        (7, "5,sapm"),
        "line 7: the label 'sapm' is not one of",
        ["--labels", "ham,spam"],
    ),
    "different lengths": ((401, None), "old.csv, line 401: {new} has only 399 rows", ["--id", ""]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_in_one_line_and_nothing_is_certified(
    case: str, old: Path, tmp_path: Path, run: Run
) -> None:
    (line, text), message, options = BAD_ROWS[case]
    new = write(tmp_path / "new.csv")
    swap(new, line, text)
    if options == ["--id", ""]:  # by order
        options = []
        for file in (old, new):
            file.write_text(file.read_text(encoding="utf-8").replace("id,label", "number,label"), "utf-8")
    done = run("certify", old, new, *options, "--page", tmp_path / "page.html")
    assert (done.exit_code, done.stdout) == (2, "")
    assert message.format(old=old, new=new) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_score_that_is_no_number_is_named(tmp_path: Path, run: Run) -> None:
    files = [
        write(tmp_path / f"{name}.csv", label=None, score=np.linspace(0, 1, ROWS)) for name in ("old", "new")
    ]
    swap(files[1], 9, "7,nan")
    done = run("certify", *files, "--decide", "score>=0.5")
    assert done.exit_code == 2
    assert "new.csv, line 9: 'nan' as score, expected a finite number" in done.stderr


def test_files_whose_texts_differ_are_not_the_same_rows(tmp_path: Path, run: Run) -> None:
    texts = [f"text {row}" for row in range(ROWS)]
    old = write(tmp_path / "old.csv", id=None, text=texts)
    new = write(tmp_path / "new.csv", id=None, text=[*texts[:5], *texts[6:], texts[5]])
    done = run("certify", old, new)
    assert done.exit_code == 2
    assert "new.csv, line 7: the text is not that of" in done.stderr


BAD_OPTIONS = {
    "too few rows": (["--guarantee", "0.001"], "400 rows cannot prove changed of at most 0.001"),
    "a model without texts": (["--guarantee", "0.02"], None),
    "an unknown risk": (["--risk", "mised"], "did you mean missed"),
    "no number": (["--guarantee", "low"], "--guarantee low: expected a number"),
    "no operating point": (["--risk", "missed"], "pass --decide"),
    "no labels": (["--risk", "accuracy"], "name it with --label"),
    "a column that is not there": (["--column", "colour"], "no column named 'colour'"),
    "finite alone": (["--finite"], "needs --stop-early"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_that_make_no_sense_are_bad_input(case: str, old: Path, run: Run) -> None:
    options, message = BAD_OPTIONS[case]
    other = old if message else old.parent
    done = run("certify", old, other, *options)
    assert done.exit_code == 2
    assert (message or "models need --texts") in done.stderr


def test_a_page_that_cannot_be_written_is_named_by_its_flag(old: Path, tmp_path: Path, run: Run) -> None:
    done = run("certify", old, write(tmp_path / "new.csv"), "--page", old / "page.html")
    assert done.exit_code == 2
    assert f"--page {old / 'page.html'}: {old} exists and is not a folder" in done.stderr


def test_a_page_and_a_badge_tell_the_verdict(old: Path, tmp_path: Path, run: Run) -> None:
    page, badge = tmp_path / "page.html", tmp_path / "badge.md"
    texts = [f"<script>alert({row})</script>" for row in range(ROWS)]
    new = write(tmp_path / "new.csv", 40, text=texts)
    assert run("certify", old, new, "--page", page, "--badge", badge).exit_code == 3
    html = page.read_text(encoding="utf-8")
    assert "refuted: with 95% confidence" in html
    assert "&lt;script&gt;alert(0)" in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "")  # it opens offline
    assert badge.read_text(encoding="utf-8") == (
        "![not certified: at most 2% of predictions differ from old.csv]"
        "(https://img.shields.io/badge/not%20certified-changed%20%E2%89%A4%202%25-red)\n"
    )


def test_two_files_need_no_torch(old: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", 1)
    code = (
        "import sys\nfrom offramp.cli import app\n"
        f"app({['certify', str(old), str(new), '--page', str(tmp_path / 'p.html')]}, standalone_mode=False)\n"
        "print(*{'torch', 'transformers', 'sklearn', 'datasets', 'onnxruntime', 'pandas'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("proven")
    assert done.stdout.endswith("\n\n") or done.stdout.splitlines()[-1] == ""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that are all different, with labels."""
    rng, words = np.random.default_rng(0), [*"abcdefghijklmnopqrstuvwxyz"]
    file = tmp_path_factory.mktemp("texts") / "logs.csv"
    rows = [
        f"{' '.join(rng.choice(words, 6))} {row},{['red', 'green', 'blue'][row % 3]}" for row in range(200)
    ]
    file.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return file


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.config.id2label = dict(enumerate(["red", "green", "blue"]))
    model.config.label2id = {"red": 0, "green": 1, "blue": 2}
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier_folder(
    tiny_classifier: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    model = tiny_classifier("bert", num_labels=3, initializer_range=0.5)
    return save(model, tokenizer, tmp_path_factory.mktemp("plain") / "plain")


def test_a_model_may_replace_itself_but_not_a_random_one(
    classifier_folder: Path, saved: Path, texts: Path, ask: Callable[..., Any], run: Run
) -> None:
    made = ask("certify", classifier_folder, classifier_folder, "--texts", texts)
    assert (made["verdict"], made["examined"], made["repeated"]) == ("proven", 200, 0)
    done = run("certify", classifier_folder, saved, "--texts", texts, "--json")
    assert done.exit_code == 3
    worst = json.loads(done.stdout)["differences"][0]
    assert worst["text"] == texts.read_text(encoding="utf-8").splitlines()[worst["row"] + 1].split(",")[0]
    assert worst["distance"] > 0


def test_a_model_and_its_export_are_compared_until_there_is_a_verdict(
    saved: Path, exported: Path, texts: Path, ask: Callable[..., Any]
) -> None:
    made = ask("certify", saved, exported, "--texts", texts, "--stop-early", "--guarantee", 0.05)
    assert made["verdict"] == "proven"
    assert made["examined"] < 200
    assert made["claims"][0]["certificate"]["bounds"][0]["bound"] == "sequential betting"


def test_labels_of_the_texts_are_used_by_the_risks_that_need_them(
    saved: Path, exported: Path, texts: Path, run: Run, ask: Callable[..., Any]
) -> None:
    options = ["--texts", texts, "--risk", "accuracy_drop", "--guarantee", 0.1]
    assert ask("certify", saved, exported, *options)["verdict"] == "proven"
    at = ["--decide", "red>=0.4", "--risk", "changed"]
    assert ask("certify", saved, exported, "--texts", texts, *at)["decision"] == "red>=0.4"


def test_the_ci_example_of_the_docs_fails_for_a_bad_model(
    classifier_folder: Path,
    saved: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:
    page = (Path(__file__).parents[2] / "docs/certify.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example.count("\n") == 12
    steps = yaml.safe_load(example)["jobs"]["certify"]["steps"]
    (command,) = (shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("offramp"))
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(texts, "held-out.csv")
    shutil.copytree(classifier_folder, "production")
    for candidate, code in ((classifier_folder, 0), (saved, 3)):
        shutil.rmtree("candidate", ignore_errors=True)
        shutil.copytree(candidate, "candidate")
        assert run(*command[1:]).exit_code == code
        assert Path(steps[-1]["with"]["path"]).exists()


def test_models_of_different_labels_cannot_be_compared(
    classifier_folder: Path, texts: Path, tmp_path: Path, run: Run
) -> None:
    other = Path(shutil.copytree(classifier_folder, tmp_path / "other"))
    config = (other / "config.json").read_text(encoding="utf-8").replace("blue", "violet")
    (other / "config.json").write_text(config, encoding="utf-8")
    done = run("certify", classifier_folder, other, "--texts", texts)
    assert done.exit_code == 2
    assert f"{other} has no label 'blue', which {classifier_folder} has" in done.stderr


def onnx_classifier(file: Path, table: np.ndarray) -> Path:
    """A graph that adds up a row of the table for every token."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "tokens"], ["logits"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    constants = {"table": table.astype(np.float32), "last": np.array([2]), "tokens": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "classifier",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, file)
    return file


def test_onnx_files_are_compared_wherever_their_config_is(
    classifier_folder: Path, texts: Path, tmp_path: Path, ask: Callable[..., Any], run: Run
) -> None:
    folder = Path(shutil.copytree(classifier_folder, tmp_path / "model"))
    table = np.random.default_rng(0).normal(0, 1, (100, 3))
    beside, below = (onnx_classifier(folder / name, table) for name in ("model.onnx", "onnx/model_int8.onnx"))
    assert ask("certify", beside, below, "--texts", texts)["verdict"] == "proven"
    onnx_classifier(below, -table)
    assert run("certify", beside, below, "--texts", texts).exit_code == 3
    (folder / "tokenizer.json").unlink()
    done = run("certify", beside, below, "--texts", texts)
    assert done.exit_code == 2
    assert "expected an ONNX file with config.json and tokenizer.json" in done.stderr


def test_a_server_that_does_not_answer_is_bad_input(texts: Path, run: Run) -> None:
    done = run("certify", "http://127.0.0.1:9", "http://127.0.0.1:9", "--texts", texts)
    assert done.exit_code == 2
    assert "http://127.0.0.1:9/info: no server answers" in done.stderr


def test_a_claim_may_be_about_every_value_of_a_column(run: Run, tmp_path: Path) -> None:
    rows = [(number, "ham" if number % 3 else "spam", "de" if number % 2 else "en") for number in range(400)]
    for name in ("old", "new"):
        lines = [f"{number},{label},{language}" for number, label, language in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,label,language", *lines]), encoding="utf-8")
    files = tmp_path / "old.csv", tmp_path / "new.csv"
    shown = run("certify", *files, "--guarantee", 0.05, "--by", "language")
    assert shown.exit_code == 0, shown.stderr
    assert "where the language is de" in shown.stdout
    assert "where the language is en" in shown.stdout
    small = run("certify", *files, "--guarantee", 0.01, "--by", "language")
    assert small.exit_code == 2
    assert "200 rows of the language 'de' cannot prove" in small.stderr
