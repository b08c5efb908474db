"""Every command does what the Python API does, and prints it for people and as JSON."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, PreTrainedModel, pipeline
from typer.testing import Result

import offramp
from offramp import BACKBONES, RECIPES, RULES, TASKS, Classifier, ExitModel, Guarantee, Policy, Trace
from offramp.cli import COMMANDS
from offramp.cli.targets import paid_attempt
from offramp.data import Task
from offramp.inference.collect import collect
from offramp.measuring import calibrate, sweep
from offramp.training.start import DEFAULT_ARGUMENTS

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    shown = run(name, "--help")
    assert shown.exit_code == 0
    _, *examples = re.split(r"^  Examples?:\n", shown.stdout, flags=re.MULTILINE)  # on lines of their own
    assert len(examples) == 1
    assert examples[0].lstrip().startswith(("offramp", "echo"))
    assert f"offramp {name}" in examples[0]
    assert all(flag in shown.stdout for flag in ("--json", "--config", "--debug"))


def test_help_and_version_load_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from offramp.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "calibrate" in done.stdout
    assert not set(done.stderr.split()) & {"torch", "transformers", "numpy", "datasets", "matplotlib"}


def test_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version").stdout == f"offramp {offramp.__version__}\n"


def test_training_again_loads_the_finished_run_and_prints_every_layer(
    trained: Path, run: Run, ask: Ask
) -> None:
    again = [
        *("train", trained / "encoder", "--out", trained / "films", "--epochs", 3, "--learning-rate", 5e-3),
        *("--train", trained / "train.csv", "--validation", trained / "dev.csv", "--batch-size", 8),
        *("--argument", "report_to=none", "--recipe", "pabee", "--exits", "0-4"),
    ]
    values = ask(*again)
    kept = json.loads((trained / "films/model/scores.json").read_text())
    assert values["layers"] == kept["layers"] == [0, 1, 2, 3, 4]
    assert values["scores"]["acc"] == kept["acc"]
    lines = run(*again).stdout.splitlines()
    assert lines[0].split() == ["layer", "acc", "macro_f1"]
    assert [line.split()[0] for line in lines[2:7]] == ["0", "1", "2", "3", "4"]


def test_training_flags_have_the_defaults_of_the_python_api(home: Path, ask: Ask) -> None:
    ask("train", home / "encoder", "--train", home / "train.csv", "--out", home / "plain", "--epochs", 1)
    run = json.loads((home / "plain/run.json").read_text())
    expected = {**DEFAULT_ARGUMENTS, "num_train_epochs": 1, "seed": 42}
    assert run["recipe"] == "joint"
    ours, pythons = inspect.signature(COMMANDS["train"]), inspect.signature(offramp.train)
    assert ours.parameters["max_length"].default == pythons.parameters["max_length"].default
    for name in ("learning_rate", "per_device_train_batch_size", "seed", "weight_decay", "num_train_epochs"):
        assert run[name] == expected[name]


def test_a_fine_tuned_model_keeps_its_backbone_unless_a_recipe_is_named(home: Path, run: Run) -> None:
    (home / "logs.csv").write_text("text\n" + "a very good plot\nnot a good plot\n" * 20)
    before = ExitModel.from_pretrained(home / "films/model").state_dict()
    data = ["--train", home / "train.csv", "--unlabelled", home / "logs.csv"]
    refused = run("train", home / "films/model", *data, "--epochs", 5, "--out", home / "exits")
    assert "--epochs 5.0 has no effect" in refused.stderr
    assert "--recipe frozen:epochs=" in refused.stderr
    done = run("train", home / "films/model", *data, "--out", home / "exits")
    assert done.exit_code == 0, done.output
    assert "the backbone stays as it is (the recipe joint trains it too)" in done.stderr
    after = ExitModel.from_pretrained(home / "exits/model").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.startswith("heads.") and ".4." not in name for name in moved)  # 4 is the last exit


@pytest.fixture
def classifier(
    tiny_classifier: Callable[..., PreTrainedModel], tokenizer: Any, tmp_path: Path
) -> Callable[[str, str], Path]:
    """classifier("no", "yes") -> the folder of a plain transformers classifier with these labels."""

    def save(*names: str) -> Path:
        folder = tmp_path / "classifier"
        tiny_classifier("bert", labels=names).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


def test_a_classifier_keeps_the_order_of_its_labels(
    home: Path, run: Run, classifier: Callable[..., Path], tmp_path: Path
) -> None:
    original = classifier("yes", "no")  # the labels of the file are taken in alphabetical order
    done = run("train", original, "--train", home / "train.csv", "--out", tmp_path / "exits")
    assert done.exit_code == 0, done.output
    plain = pipeline("text-classification", str(original), device="cpu")
    found = Classifier.from_pretrained(tmp_path / "exits/model", "never").predict(TEXTS)
    assert [each.label for each in found] == [plain(text)[0]["label"] for text in TEXTS]


def test_a_classifier_that_is_trained_for_another_task_gets_its_labels(
    home: Path, run: Run, classifier: Callable[..., Path], tmp_path: Path
) -> None:
    data = [classifier("BAD", "GOOD"), "--train", home / "train.csv", "--out", tmp_path / "exits"]
    done = run("train", *data, "--epochs", 1, "--recipe", "final")
    assert done.exit_code == 0, done.output
    config = ExitModel.from_pretrained(tmp_path / "exits/model").config
    assert config.label_names == ["no", "yes"]
    assert (config.fine_tuned, config.inner_exits_trained) == (True, False)
    assert "expected one of BAD, GOOD" in run("train", *data, "--recipe", "frozen").stderr


def test_a_classifier_without_its_upper_layers_is_trained(
    home: Path, run: Run, classifier: Callable[..., Path], tmp_path: Path
) -> None:
    data = [
        classifier("no", "yes"),
        "--train",
        home / "train.csv",
        "--layers",
        2,
        "--out",
        tmp_path / "exits",
    ]
    done = run("train", *data, "--epochs", 1)
    assert done.exit_code == 0, done.output
    assert "recipe   joint" in done.stderr
    assert "has no trained classifier" in run("train", *data, "--recipe", "frozen").stderr


@pytest.mark.parametrize("recipe", ["frozen", "deebert:fine_tune=false"])
def test_a_plain_encoder_has_no_classifier_that_could_stay_as_it_is(
    recipe: str, home: Path, run: Run
) -> None:
    data = ["--train", home / "train.csv", "--recipe", recipe, "--out", home / "exits"]
    done = run("train", home / "encoder", *data)
    assert done.exit_code == 1
    assert "has no trained classifier" in done.stderr
    assert "--recipe joint" in done.stderr


@pytest.mark.parametrize(("recipe", "file"), [("deebert", "train.csv"), ("fastbert", "texts.csv")])
def test_exits_of_a_trained_model_can_be_trained_further_even_without_labels(
    recipe: str, file: str, home: Path, ask: Ask
) -> None:
    (home / "texts.csv").write_text("text\n" + "a very good film\nnot a good film\n" * 8)
    data = ["--train", home / file, "--validation", home / "dev.csv", "--batch-size", 8]
    before = ExitModel.from_pretrained(home / "films/model").state_dict()
    found = ask(
        "train", home / "films/model", *data, "--recipe", f"{recipe}:fine_tune=false", "--out", home / "more"
    )
    after = ExitModel.from_pretrained(home / "more/model").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.startswith(("heads.poolers.", "heads.classifiers.")) for name in moved)
    assert len(found["scores"]["acc"]) == 5


def test_exits_layers_and_head_follow_the_flags(home: Path, ask: Ask) -> None:
    data = ["--train", home / "train.csv", "--epochs", 1, "--recipe", "final"]
    ask(
        "train",
        home / "encoder",
        *data,
        "--layers",
        3,
        "--exits",
        3,
        "--head",
        "pooler=none",
        "--out",
        home / "s",
    )
    model = ExitModel.from_pretrained(home / "s/model")
    assert (model.config.exits, model.config.num_layers, model.config.head["pooler"]) == ([0, 3], 3, "none")


def test_trace_equals_collect(trained: Path) -> None:
    kept = Trace.load(trained / "dev.trace")
    rows = Task.from_files(validation=trained / "dev.csv").load()["validation"]
    folder = trained / "films/model"
    model, tokenizer = ExitModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    fresh = collect(model, rows, tokenizer, progress=False)
    np.testing.assert_array_equal(kept.logits, fresh.logits)
    np.testing.assert_array_equal(kept.labels, fresh.labels)
    assert (kept.metrics, kept.data) == (("acc", "macro_f1"), "dev.csv")


@pytest.mark.parametrize("labels", [2, 3])
def test_a_model_without_label_names_counts_labels_as_the_file_does(
    labels: int, tmp_path: Path, run: Run, save_encoder: Callable[..., Path]
) -> None:
    encoder = save_encoder(tmp_path / "encoder")
    ExitModel.from_encoder(encoder, num_labels=labels).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path / "model")
    every = [str(label) for label in range(labels)]
    (tmp_path / "every.csv").write_text("\n".join(["text,label", *(f"a film,{label}" for label in every)]))
    done = run("trace", tmp_path / "model", "--data", tmp_path / "every.csv", "--out", tmp_path / "x.trace")
    assert done.exit_code == 0, done.output
    assert Trace.load(tmp_path / "x.trace").labels.tolist() == [*range(labels)]  # type: ignore[union-attr]


def test_curve_equals_sweep(trained: Path, run: Run, ask: Ask) -> None:
    file = trained / "dev.trace"
    asked = ["curve", file, "--rule", "patience", "--thresholds", "1,2,3", "--bootstrap", 0]
    points = ask(*asked)["sections"][0]["sweep"]["curves"]["patience"]["points"]
    expected = sweep(Trace.load(file), "patience", [1, 2, 3]).curves["patience"].points
    assert [point["threshold"] for point in points] == [point.threshold for point in expected]
    assert [point["scores"] for point in points] == [point.scores for point in expected]
    assert [line.split()[0] for line in run(*asked).stdout.splitlines()[-3:]] == ["1", "2", "3"]


def test_a_curve_is_saved_as_page_json_table_and_plots(home: Path, run: Run) -> None:
    done = run("curve", home / "dev.trace", "--out", home / "report", "--plots", "--bootstrap", 0)
    assert str(home / "report/report.html") in done.stdout
    endings = {file.suffix for file in (home / "report").iterdir()}
    assert endings == {".html", ".json", ".txt", ".svg"}


def test_a_rule_of_a_curve_may_have_options_and_no_threshold(home: Path, ask: Ask) -> None:
    asked = ["curve", home / "dev.trace", "--rule", "patience,tolerance=0.1", "--thresholds", "1,2,3"]
    values = ask(*asked, "--bootstrap", 0)
    points = values["sections"][0]["sweep"]["curves"]["patience,tolerance=0.1"]["points"]
    assert [point["threshold"] for point in points] == [1, 2, 3]


def test_every_checkpoint_of_a_run_is_traced_and_compared(home: Path, ask: Ask, run: Run) -> None:
    (checkpoint,) = (home / "films/phase-1").glob("checkpoint-*")
    shutil.copytree(checkpoint, checkpoint.with_name("checkpoint-5"))
    asked = ["trace", home / "films", "--checkpoints", "--data", home / "dev.csv", "--out", home / "traces"]
    files = [record["trace"] for record in ask(*asked)["traces"]]
    assert files == [str(home / f"traces/phase-1-step-{step}.trace") for step in ("05", "15")]
    done = run(
        "curve", home / "traces", "--rule", "patience", "--thresholds", "1,2", "--csv", home / "points.csv"
    )
    assert [line.split()[:3] for line in done.stdout.splitlines()[2:4]] == [
        ["phase-1-step-05", "patience", "1"],
        ["phase-1-step-15", "patience", "1"],
    ]
    lines = (home / "points.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        [name, "patience", threshold]
        for name in ("phase-1-step-05", "phase-1-step-15")
        for threshold in ("1.0", "2.0")
    ]


def test_a_folder_without_checkpoints_is_refused(home: Path, run: Run) -> None:
    asked = ["trace", home / "films/model", "--checkpoints", "--data", home / "dev.csv"]
    assert "no checkpoints found" in run(*asked, "--out", home / "traces").stderr


def test_elue_scores_need_a_reference_trace(home: Path, ask: Ask) -> None:
    file = home / "dev.trace"
    (section,) = ask("curve", file, "--rule", "layer", "--elue", file, "--bootstrap", 0)["sections"]
    assert section["elue"] == {"layer": pytest.approx(0)}


def test_calibrating_stores_the_policy_and_its_certificate(home: Path, ask: Ask, run: Run) -> None:
    trace = Trace.load(home / "dev.trace")
    expected = calibrate(trace, None, Guarantee(0.2)).policy
    values = ask("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2)
    assert values["policy"] == str(expected)
    assert Policy.from_json(values["saved_policy"]) == expected
    assert values["certificate"] == json.loads(json.dumps(expected.to_json()["certificate"]))
    assert Classifier.from_pretrained(home / "films/model").runner.policy == expected
    assert expected.certificate.summary in run("info", home / "films").stdout


def test_calibrating_says_which_rules_were_tried_and_how_the_trace_was_split(
    home: Path, ask: Ask, run: Run
) -> None:
    asked = ["calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2, "--dry-run"]
    values, text = ask(*asked), run(*asked).stdout
    rules = ["agreement", "entropy", "layer"]
    assert values["rules"] == rules
    assert values["split"] == {"rules": ["agreement"], "fitted_on": 20, "calibrated_on": 40}
    assert values["certificate"]["rules_tried"] == 3
    assert f"rules tried: {', '.join(rules)}; the certificate allows for the choice of 3" in text
    assert "agreement: fitted on 20 examples of the trace, threshold set on the other 40" in text

    one = ask(*asked, "--rule", "entropy")
    assert (one["rules"], one["split"], one["examples"]) == (["entropy"], None, 60)
    two = run(*asked, "--rule", "entropy", "--rule", "margin").stdout
    assert "rules tried: entropy, margin; the certificate" in two
    assert "fitted on" not in two


def test_a_static_cut_that_is_as_good_is_recommended(home: Path, ask: Ask, run: Run) -> None:
    asked = ["calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2, "--dry-run"]
    trace = Trace.load(home / "dev.trace")
    logits = np.repeat(trace.logits[:, -1:], 5, axis=1)  # all exits predict the same
    replace(trace, logits=logits).save(home / "dev.trace")
    assert ask(*asked)["static_cut"] == {"policy": "layer:0", "mean_layer": 0.0}
    assert "stopping every text at layer 0 does just as well" in run(*asked).stdout
    logits = logits.copy()
    logits[::3, :4] *= -1  # for every third example no exit but the last
    logits[::3, :4] /= 100  # and it shows
    replace(trace, logits=logits).save(home / "dev.trace")
    assert ask(*asked)["static_cut"] is None
    assert "static cut" not in run(*asked).stdout


def test_calibrate_with_a_policy_repairs_a_folder_whose_stored_policy_cannot_run(
    home: Path, ask: Ask, run: Run
) -> None:
    config = home / "films/model/config.json"
    policy = {"rule": "layer", "threshold": 99}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"policy": policy}))
    repair = ["calibrate", home / "films/model", "--policy", "never"]
    for refused in (
        run("predict", home / "films", home / "dev.csv"),
        run("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2),
    ):
        assert refused.exit_code == 1
        assert f"offramp {' '.join(map(str, repair))}" in refused.stderr
    ask(*repair)
    ask("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2)


def test_a_stored_rule_that_learns_takes_another_threshold(home: Path, ask: Ask, run: Run) -> None:
    refused = run("calibrate", home / "films", "--policy", "agreement:0.9")
    assert refused.exit_code == 1
    assert "not fitted" in refused.stderr
    learned = ["calibrate", home / "films", home / "dev.trace", "--rule", "agreement", "--guarantee", 0.2]
    stored = Policy.from_json(ask(*learned)["saved_policy"])
    ask("calibrate", home / "films", "--policy", "agreement:0.9")
    found = Classifier.from_pretrained(home / "films/model").runner.policy
    assert (found.rule, found.threshold) == (stored.rule, 0.9)
    data = ["--data", home / "dev.csv", "--max-loss", 50]
    exported = ask("export", home / "films", "--out", home / "fast", *data)
    assert (exported["rules"], exported["split"]["fitted_on"]) == (["agreement:0.9"], 20)


@pytest.mark.parametrize(
    "target", [("--max-loss", 5), ("--min-speedup", 1.1), ("--budget", 3.5), ("--policy", "patience:2")]
)
def test_every_target_gives_a_policy_that_runs(home: Path, ask: Ask, target: tuple[str, Any]) -> None:
    values = ask("calibrate", home / "films", home / "dev.trace", *target)
    assert str(Classifier.from_pretrained(home / "films/model").runner.policy) == values["policy"]
    assert 0 <= values["mean_layer"] <= values["layers"] == 4


def test_bounds_by_class_are_proven_for_each_class(home: Path, ask: Ask) -> None:
    values = ask("calibrate", home / "films", home / "dev.trace", "--guarantee", "yes=0.2,no=0.3")
    assert {bound["group"]: bound["epsilon"] for bound in values["certificate"]["bounds"]} == {
        "yes": 0.2,
        "no": 0.3,
    }


def test_bounds_hold_for_every_value_of_a_column_and_for_every_risk(home: Path, run: Run, ask: Ask) -> None:
    header, *rows = (home / "dev.csv").read_text(encoding="utf-8").splitlines()
    lines = [f"{row},{('de', 'en')[number // 2 % 2]}" for number, row in enumerate(rows)]
    file, trace = home / "both.csv", home / "both.trace"
    file.write_text("\n".join([f"{header},language", *lines]) + "\n", encoding="utf-8")
    ask("trace", home / "films", "--data", file, "--by", "language", "--out", trace)
    options = ["--guarantee", "missed=0.5,false_alarm=0.5", "--decide", "yes>=0.5", "--rule", "entropy"]
    values = ask("calibrate", home / "films", trace, *options, "--by", "language")
    groups = {(bound["risk"], bound["group"]) for bound in values["certificate"]["bounds"]}
    assert groups == {(risk, name) for risk in ("missed", "false_alarm") for name in ("de", "en")}
    first, *_ = run("predict", home / "films", file, "--json").stdout.splitlines()
    assert json.loads(first)["decision"] in (True, False)
    none = run("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.3, "--by", "language")
    assert none.exit_code == 1
    assert "--by language" in none.stderr
    wrong = run("trace", home / "films", "--data", file, "--by", "tongue", "--out", home / "x.trace")
    assert "no column named 'tongue', expected one of text, label, language" in wrong.stderr


def test_another_bound_on_the_same_texts_is_paid_for_until_nothing_is_left(
    home: Path, run: Run, ask: Ask
) -> None:
    def options(bound: float, delta: float) -> list[Any]:
        return ["calibrate", home / "films", home / "dev.trace", "--guarantee", bound, "--delta", delta]

    assert ask(*options(0.3, 0.3))["certificate"]["delta"] == 0.3
    assert ask(*options(0.35, 0.4))["certificate"]["delta"] == pytest.approx(0.7)
    none = run(*options(0.4, 0.4))
    assert none.exit_code == 3
    assert "2 earlier attempts on these texts may be wrong with a probability of 0.7" in none.stderr


def test_another_operating_point_or_precision_is_another_attempt(home: Path, ask: Ask) -> None:
    def delta(*options: Any) -> float:
        same = ["--guarantee", 0.35, "--rule", "entropy", "--dry-run"]
        found = ask("calibrate", home / "films", home / "dev.trace", *same, *options)
        return float(found["certificate"]["delta"])

    assert [delta(), delta("--decide", "yes>=0.5"), delta("--decide", "yes>=0.4")] == pytest.approx(
        [0.05, 0.1, 0.15]
    )
    assert delta() == pytest.approx(0.05), "the same again is no further attempt"
    other = replace(Trace.load(home / "dev.trace"), precision="int8")
    with paid_attempt(other, ["entropy"], Guarantee(0.35)) as spent:
        assert spent == pytest.approx(0.15)


def test_a_dry_run_stores_nothing(home: Path, ask: Ask) -> None:
    before = contents(home / "films/model")
    assert not ask("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2, "--dry-run")["stored"]
    assert contents(home / "films/model") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


TEXTS = ["a very good film", "not a good plot", "bad", 'a film, very "good"']
WRITTEN = {
    "txt": lambda file: file.write_text("\n".join(TEXTS) + "\n"),
    "csv": lambda file: file.write_text("\n".join(["text", *(quoted(text) for text in TEXTS)]) + "\n"),
    "tsv": lambda file: file.write_text(
        "\n".join(["text\tscore\tlabel", *(f"{text}\t1\t2" for text in TEXTS)])
    ),
    "jsonl": lambda file: file.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS)),
    "parquet": lambda file: write_parquet(file),
}


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def write_parquet(file: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), file)


@pytest.mark.parametrize("ending", WRITTEN)
def test_predict_equals_the_classifier_for_every_file_format(
    trained: Path, tmp_path: Path, run: Run, ending: str
) -> None:
    WRITTEN[ending](tmp_path / f"texts.{ending}")
    policy = ["--policy", "patience:1", "--max-layer", 3]
    done = run("predict", trained / "films", tmp_path / f"texts.{ending}", *policy, "--json")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    classifier = Classifier.from_pretrained(trained / "films/model", "patience:1")
    expected = classifier.predict(TEXTS, max_layer=3)
    assert [record["text"] for record in records] == TEXTS
    assert [(record["label"], record["layer"]) for record in records] == [
        (p.label, p.layer) for p in expected
    ]
    assert [record["score"] for record in records] == pytest.approx([p.score for p in expected], abs=1e-5)


def test_an_error_in_stdin_names_stdin(trained: Path, run: Run) -> None:
    damaged = run("predict", trained / "films", "--input-format", "csv", stdin='text\n"a film')
    assert damaged.exit_code == 1
    assert "offramp: stdin, line 2: not CSV" in damaged.stderr


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl"])
def test_stdin_is_read_like_a_file(trained: Path, tmp_path: Path, run: Run, ending: str) -> None:
    file = tmp_path / f"texts.{ending}"
    WRITTEN[ending](file)
    from_file = run("predict", trained / "films", file)
    from_stdin = run("predict", trained / "films", "--input-format", ending, stdin=file.read_text())
    assert from_stdin.stdout == from_file.stdout
    assert len(from_stdin.stdout.splitlines()) == len(TEXTS)
    assert "4 texts" in from_stdin.stderr


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv"])
def test_predictions_are_written_in_the_order_of_the_texts(
    trained: Path, tmp_path: Path, ask: Ask, ending: str
) -> None:
    WRITTEN["txt"](tmp_path / "texts.txt")
    out = tmp_path / f"answers.{ending}"
    values = ask("predict", trained / "films", tmp_path / "texts.txt", "--out", out)
    assert values == {"out": str(out), "examples": 4}
    read = Task.from_files(validation=out, label="label", text="text", labels=["no", "yes"]).load()[
        "validation"
    ]
    expected = Classifier.from_pretrained(trained / "films/model").predict(TEXTS)
    assert read["text"] == TEXTS
    assert [["no", "yes"][label] for label in read["label"]] == [prediction.label for prediction in expected]


def test_pairs_are_predicted_as_pairs(home: Path, tmp_path: Path, run: Run) -> None:
    config = home / "films/model/config.json"
    config.write_text(config.read_text().replace('"trained_on_pairs": false', '"trained_on_pairs": true'))
    (tmp_path / "pairs.csv").write_text("premise,hypothesis\na film,a plot\nbad,not good\n")
    done = run("predict", home / "films", tmp_path / "pairs.csv", "--json")
    expected = Classifier.from_pretrained(home / "films/model").predict(
        [("a film", "a plot"), ("bad", "not good")]
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["hypothesis"] for record in records] == ["a plot", "not good"]
    assert [record["probabilities"] for record in records] == [
        pytest.approx(prediction.probabilities, abs=1e-5) for prediction in expected
    ]


def test_bench_times_full_depth_and_the_policy_on_the_same_texts(trained: Path, ask: Ask, run: Run) -> None:
    asked = ["bench", trained / "films", "--data", trained / "dev.csv", "--policy", "layer:1", "--repeats", 2]
    values = ask(*asked, "--limit", 10)
    full, early = values["runs"]
    assert (values["examples"], full["name"], early["name"]) == (10, "full depth", "layer:1")
    assert (full["mean_layer"], early["mean_layer"]) == (4, 1)
    by_layer = json.loads((trained / "films/model/scores.json").read_text())["acc"]
    whole = ask(*asked)
    assert [each["scores"]["acc"] for each in whole["runs"]] == [by_layer[4], by_layer[1]]
    assert full["times_faster"] == {"single": 1, "batch": 1, "p50": 1, "p95": 1}
    assert "one text, ms" in run(*asked).stdout


def test_an_older_checkpoint_becomes_a_model_that_predicts(
    tmp_path: Path, tiny_classifier: Callable[..., PreTrainedModel], trained: Path, ask: Ask, run: Run
) -> None:
    old = tiny_classifier("bert", layers=4, num_labels=2, pad_token_id=0)
    weights = {name: tensor.contiguous() for name, tensor in old.state_dict().items()}
    for layer in range(4):
        for part, shape in {"pooler.dense": (16, 16), "classifier": (2, 16)}.items():
            weights[f"bert.encoder.highway.{layer}.{part}.weight"] = torch.randn(shape)
            weights[f"bert.encoder.highway.{layer}.{part}.bias"] = torch.randn(shape[0])
    folder = tmp_path / "old"
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(old.config.to_dict()))
    (folder / "vocab.txt").write_bytes((trained / "encoder/vocab.txt").read_bytes())
    values = ask("import", folder, "--labels", "no,yes", "--out", tmp_path / "new")
    assert (values["system"], values["exits"]) == ("deebert", [1, 2, 3, 4])
    assert "library_name: offramp" in (tmp_path / "new/README.md").read_text()
    assert run("predict", tmp_path / "new", stdin="a good film\n").stdout.split("\t")[0] in ("no", "yes")


def test_info_describes_a_model(trained: Path, ask: Ask) -> None:
    values = ask("info", trained / "films")
    model = ExitModel.from_pretrained(trained / "films/model")
    assert values["parameters"] == sum(weights.numel() for weights in model.parameters())
    assert values["head"] == model.config.head
    assert (values["backbone"], values["exits"], values["labels"]) == ("bert", [0, 1, 2, 3, 4], ["no", "yes"])


def test_list_has_every_registered_name(ask: Ask) -> None:
    found = ask("list")
    registries = {"backbones": BACKBONES, "rules": RULES, "recipes": RECIPES, "tasks": TASKS}
    assert {kind: list(lines) for kind, lines in found.items()} == {
        kind: list(names) for kind, names in registries.items()
    }
    assert all(line.strip() for lines in found.values() for line in lines.values())
    assert list(ask("list", "rules")) == ["rules"]
