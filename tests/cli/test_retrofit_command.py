"""offramp retrofit on a tiny classifier, from the command line."""

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from offramp import Classifier
from offramp.cli.rows import read_labels, read_rows
from offramp.cli.targets import parse_bounds
from offramp.data import Task
from offramp.errors import BadOption
from offramp.folder import load_model
from offramp.folder.manifest import MANIFEST, PORTABLE
from offramp.retrofits.arguments import check_labels
from offramp.retrofits.original import load_original
from offramp.trace import Trace

Run = Callable[..., Any]
WORDS = ["good", "bad", "film", *"abcdefgh"]


@pytest.fixture(scope="module")
def workplace(
    tiny_classifier: Callable[..., PreTrainedModel], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A classifier, texts with labels as csv, and without as txt."""
    home = tmp_path_factory.mktemp("retrofit")
    model = tiny_classifier("bert", labels=["no", "yes"])
    model.save_pretrained(home / "mine")
    tokenizer.save_pretrained(home / "mine")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(500)]
    (home / "logs.txt").write_text("\n".join(texts), encoding="utf-8")
    with (home / "logs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "label"), *((text, draw.choice(["no", "yes"])) for text in texts)]
        )
    return home


def retrofit(run: Run, home: Path, *more: Any, texts: str = "logs.txt", out: str = "out") -> Any:
    flags = ["--guarantee", 0.2, "--runtime", "torch", "--rule", "entropy"]
    return run("retrofit", home / "mine", "--texts", home / texts, "--out", home / out, *flags, *more)


@pytest.fixture(scope="module")
def shown(run: Run, workplace: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offramp.measuring.speed.REPEATS", 1)
        return retrofit(run, workplace)


def test_retrofit_prints_a_verdict_and_the_next_commands(shown: Any, workplace: Path) -> None:
    assert shown.exit_code == 0, shown.stderr
    for part in (
        "than mine in transformers for one text and",
        "than full depth in the same runtime (fp32) for one text and",
        "predictions changed:",
        "at most 20% of predictions differ from mine",
    ):
        assert part in shown.stdout
    assert f"offramp predict {workplace / 'out'}" in shown.stdout
    assert "(on data like logs.txt)" in shown.stdout
    card = (workplace / "out" / "model" / "README.md").read_text(encoding="utf-8")
    assert ", with `entropy:" in card  # a policy that is stored later was not compared


def test_the_next_commands_take_the_output_folder(shown: Any, run: Run, workplace: Path) -> None:
    assert shown.exit_code == 0
    predicted = run("predict", workplace / "out", workplace / "logs.txt", "--json")
    assert len(predicted.stdout.splitlines()) == 500
    assert run("info", workplace / "out").exit_code == 0


def test_a_second_run_prints_the_same_as_json(shown: Any, run: Run, workplace: Path) -> None:
    again = json.loads(retrofit(run, workplace, "--json").stdout)
    assert again["verdict"][1] in shown.stdout
    assert again["model"] == str(workplace / "out" / "model")


def test_a_retrofitted_model_is_calibrated_again_against_the_original(
    shown: Any, run: Run, workplace: Path, tmp_path: Path
) -> None:
    assert shown.exit_code == 0
    model = Path(shutil.copytree(workplace / "out" / "model", tmp_path / "model"))
    original, tokenizer = load_model(model)
    with torch.no_grad():  # so that every prediction of full depth is another one
        original.heads.classifiers[-1].weight.neg_()
        original.heads.classifiers[-1].bias.neg_()
    original.config.policy = None
    original.save_pretrained(model / "reference")
    tokenizer.save_pretrained(model / "reference")

    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=9)) for _ in range(200)]
    (tmp_path / "new.csv").write_text("\n".join(["text", *texts]), encoding="utf-8")
    traced = run("trace", model, "--data", tmp_path / "new.csv", "--out", tmp_path / "new.trace")
    assert "running mine" in traced.stderr, traced.stderr
    trace = Trace.load(tmp_path / "new.trace")
    names = Classifier.from_pretrained(model).runner.runtime.info.labels
    expected = Classifier.from_pretrained(model / "reference", "never").predict(texts)
    assert [names[each] for each in trace.reference_predictions()] == [each.label for each in expected]
    assert trace.reference_name == "mine"

    refused = run("calibrate", model, tmp_path / "new.trace", "--guarantee", 0.5)
    assert refused.exit_code == 3
    assert "shows a risk of" in refused.stderr


def test_calibrate_says_that_the_portable_folder_beside_a_model_keeps_its_policy(
    shown: Any, run: Run, workplace: Path, tmp_path: Path
) -> None:
    assert shown.exit_code == 0
    model = Path(shutil.copytree(workplace / "out" / "model", tmp_path / "model"))
    alone = run("calibrate", model, "--policy", "entropy:0.2")
    assert "portable" not in alone.stdout
    (tmp_path / PORTABLE).mkdir()
    (tmp_path / PORTABLE / MANIFEST).write_text("{}")
    beside = run("calibrate", model, "--policy", "entropy:0.2")
    assert f"offramp export {model} --portable" in beside.stdout.replace("\n", " ")


def test_an_operating_point_is_stored_and_its_decisions_printed(
    shown: Any, run: Run, workplace: Path, tmp_path: Path
) -> None:
    assert shown.exit_code == 0
    model = Path(shutil.copytree(workplace / "out" / "model", tmp_path / "model"))
    (tmp_path / "new.csv").write_text("text\n" + "\n".join(WORDS), encoding="utf-8")
    stored = run("calibrate", model, "--policy", "entropy:0.2", "--decide", "yes>=0.45")
    assert stored.exit_code == 0, stored.output
    assert json.loads(run("info", model, "--json").stdout)["decide"] == "yes>=0.45"
    found = [
        json.loads(line) for line in run("predict", model, tmp_path / "new.csv", "--json").stdout.splitlines()
    ]
    assert [each["decision"] for each in found] == [each["probabilities"]["yes"] >= 0.45 for each in found]
    assert run("predict", model, tmp_path / "new.csv").stdout.splitlines()[0].split("\t")[0] in (
        "True",
        "False",
    )

    traced = run("trace", model, "--data", tmp_path / "new.csv", "--out", tmp_path / "new.trace")
    assert traced.exit_code == 0, traced.output
    aim = ["--rule", "entropy", "--guarantee", "0.9", "--dry-run", "--json"]
    for point, decision in ((), "yes>=0.45"), (("--decide", "no>=0.3"), "no>=0.3"), (("--decide", ""), ""):
        done = run("calibrate", model, tmp_path / "new.trace", *aim, *point)
        assert json.loads(done.stdout)["certificate"]["decision"] == decision


def test_labels_in_the_file_give_scores(run: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offramp.measuring.speed.REPEATS", 1)
    found = json.loads(retrofit(run, workplace, "--json", texts="logs.csv", out="scored").stdout)
    assert all("acc" in row["scores"] for row in found["comparison"])


def test_labels_in_any_format_are_read_as_names(tmp_path: Path) -> None:
    files = {"a.csv": "text,label\nx,1\n", "b.jsonl": '{"text": "x", "label": 1.0}\n'}
    for name, content in files.items():
        file = tmp_path / name
        file.write_text(content)
        assert read_labels([*read_rows(file, None, None)], file, None, None, None) == ["1"]


def test_yes_and_no_of_json_are_the_names_that_training_gives_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "x", "label": true}\n{"text": "y", "label": false}\n')
    cells = read_labels([*read_rows(file, None, None)], file, None, None, None)
    assert cells is not None
    assert set(cells) == {*(Task.from_files(train=file).labels or ())} == {"True", "False"}


def test_labels_are_numbered_as_the_outputs_are(
    tiny_classifier: Callable[..., PreTrainedModel], tokenizer: Any, tmp_path: Path
) -> None:
    names = [f"class {number}" for number in range(12)]  # saved in the order of "0", "1", "10", "11", "2"
    tiny_classifier("bert", labels=names).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    labels = check_labels(names, 12, load_original(tmp_path), None, "logs.csv")
    assert labels is not None
    assert labels.tolist() == list(range(12))


@pytest.mark.parametrize("header", [("text", "label"), ("text", "label", "score"), ("text", "score")])
def test_columns_that_are_no_labels_of_the_model_are_ignored(
    header: tuple[str, ...], run: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offramp.measuring.speed.REPEATS", 1)
    texts = (workplace / "logs.txt").read_text(encoding="utf-8").splitlines()
    with (workplace / "other.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *((text, "0.57", "pos")[: len(header)] for text in texts)])
    found = retrofit(run, workplace, "--json", texts="other.csv", out=f"other-{len(header)}-{header[-1]}")
    assert found.exit_code == 0, found.stderr
    assert "the file's labels are not used" in found.stderr
    assert all(not row["scores"] for row in json.loads(found.stdout)["comparison"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--guarantee", "0.001"], "not enough texts (500)"),
        (["--guarantee", "yes"], "--guarantee yes: expected a number"),
        (["--tolerance", "0.1"], "a tolerance is for numbers and for --risk score; leave it out"),
        (["--precision", "int8"], "--precision int8 needs --runtime onnx"),
        (["--labels", "a,b,c"], "3 label names for a model with 2 outputs"),
        (["--guarantee", "yes=0.1,yes=0.4,no=0.1"], "names a risk or class twice"),
        (
            ["--guarantee", "missed=0.2,false_alarn=0.2"],
            "unknown risk 'false_alarn'; did you mean false_alarm",
        ),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    run: Run, workplace: Path, flags: list[str], message: str
) -> None:
    result = retrofit(run, workplace, *flags, out="refused")
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("offramp: ") == 1
    assert not (workplace / "refused" / "model").exists()


@pytest.mark.parametrize(
    "names",
    [{"0": "no", "2": "yes"}, {"0": "no", "1": "no"}, {"0": "no", "1": 1}],
    ids=["a gap", "the same name twice", "a number"],
)
def test_a_classifier_whose_outputs_are_not_named_each_is_refused_before_any_work(
    names: dict[str, Any], run: Run, workplace: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(workplace / "mine", tmp_path / "mine"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"id2label": names}))
    texts = ["--texts", workplace / "logs.txt", "--guarantee", 0.2]
    refused = run("retrofit", model, *texts, "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert "does not name the outputs 0, 1 and so on" in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["predict", "export", "info"])
def test_a_plain_classifier_is_sent_to_retrofit(run: Run, workplace: Path, command: str) -> None:
    out = ["--out", workplace / "refused"] if command == "export" else []
    refused = run(command, workplace / "mine", *out)
    assert refused.exit_code == 1
    assert f"`offramp retrofit {workplace / 'mine'} --texts FILE" in refused.stderr


def test_what_has_exits_already_is_not_retrofitted(run: Run, workplace: Path, shown: Any) -> None:
    assert shown.exit_code == 0
    for folder in (workplace / "out", workplace / "out" / "model"):
        refused = run("retrofit", folder, "--texts", workplace / "logs.txt", "--out", workplace / "refused")
        assert "has exits already; set its policy with `offramp calibrate`, or retrofit the" in refused.stderr


def test_a_folder_of_texts_is_not_a_missing_file(run: Run, workplace: Path) -> None:
    assert "is a folder; name one txt, csv" in retrofit(run, workplace, texts="mine", out="refused").stderr


def test_bounds_of_classes_whose_names_have_commas_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bounds.yaml"
    file.write_text("'no, never': 0.1\nyes: 0.02\n")
    assert parse_bounds(str(file)) == {"no, never": 0.1, "yes": 0.02}
    (tmp_path / "broken.yaml").write_text("bounds: {no")
    (tmp_path / "names.yaml").write_text("[no, yes]")
    (tmp_path / "twice.yaml").write_text("no: 0.1\nyes: 0.02\nno: 0.3\n")
    (tmp_path / "empty.yaml").write_text("")
    for wrong, message in {
        "no, never=0.1,yes=0.02": "or a json or yaml file",
        str(tmp_path / "nowhere.json"): "nowhere.json: No such file",
        str(tmp_path / "broken.yaml"): "does not contain a bound for each",
        str(tmp_path / "names.yaml"): "does not contain a bound for each",
        str(tmp_path / "twice.yaml"): "twice.yaml names a risk or class twice",
        str(tmp_path / "empty.yaml"): "does not contain a bound for each",
    }.items():
        with pytest.raises(BadOption, match=message):
            parse_bounds(wrong)


def test_a_missing_file_or_model_is_named(run: Run, workplace: Path) -> None:
    assert "no such file" in retrofit(run, workplace, texts="nope.csv", out="refused").stderr
    texts = ["--texts", workplace / "logs.txt", "--guarantee", 0.2]
    wrong = run("retrofit", workplace / "nobody", *texts, "--out", workplace / "x")
    assert "nobody" in wrong.stderr
    assert wrong.exit_code == 1


def test_a_guard_is_certified_for_misses_and_false_alarms_in_every_language(
    run: Run, workplace: Path
) -> None:
    with (workplace / "logs.csv").open(newline="") as file:
        rows = [row[0] for row in csv.reader(file)][1:]
    with (workplace / "languages.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "language"), *((text, "de" if row % 2 else "en") for row, text in enumerate(rows))]
        )
    flags = ["--guarantee", "missed=0.45,false_alarm=0.45", "--decide", "yes>=0.2", "--by", "language"]
    flags += ["--texts", workplace / "languages.csv", "--runtime", "torch", "--rule", "entropy"]
    shown = run("retrofit", workplace / "mine", "--out", workplace / "guard", *flags)
    assert shown.exit_code == 0, shown.stderr
    assert (
        "lose a yes, in every language (de, en) and at most 45% of examples that mine says no to"
        in " ".join(shown.stdout.split())
    )
    (first, *_) = run("predict", workplace / "guard", workplace / "logs.txt", "--json").stdout.splitlines()
    assert json.loads(first)["decision"] in (True, False)
    few = run("retrofit", workplace / "mine", "--out", workplace / "none", *flags[2:], "--guarantee", 0.02)
    assert few.exit_code == 1
    assert "of the language 'en' (needed: 149, about 373 in all)" in few.stderr
    strange = run("retrofit", workplace / "mine", "--out", workplace / "none", *flags, "--by", "tongue")
    assert "--by tongue: " in strange.stderr
