"""offramp export, and other commands on an exported folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from transformers import AutoConfig, AutoTokenizer
from typer.testing import Result

from offramp.folder.manifest import Manifest
from offramp.model_info import ModelInfo
from offramp.policy import Policy

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def certified(trained: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A copy of `trained` with a certified policy, exported to `int8` without data, and what that printed."""
    home = Path(shutil.copytree(trained, tmp_path_factory.mktemp("certified") / "home"))
    for line in (
        ("calibrate", home / "films", home / "dev.trace", "--rule", "entropy", "--guarantee", 0.3),
        ("export", home / "films", "--precision", "int8", "--out", home / "int8"),
    ):
        done = run(*line)
        assert done.exit_code == 0, done.output
    return home, done


def test_an_exported_model_works_with_trace_calibrate_and_predict(
    certified: tuple[Path, Result], tmp_path: Path, ask: Ask, run: Run
) -> None:
    home, fast = certified[0], Path(shutil.copytree(certified[0] / "int8", tmp_path / "fast"))
    assert ask("info", fast)["runtime"] == "ONNX Runtime, int8"

    refused = run("calibrate", fast, home / "dev.trace", "--max-loss", 50)
    assert refused.exit_code == 1
    assert "collected in fp32, not in the int8 of" in refused.stderr

    ask("trace", fast, "--data", home / "dev.csv", "--out", tmp_path / "fast.trace")
    found = ask("calibrate", fast, tmp_path / "fast.trace", "--guarantee", 0.4, "--delta", 0.2)
    assert found["certificate"]["conditions"]["precision"] == "int8"
    assert found["certificate"]["conditions"]["runtime"].startswith("onnxruntime")

    answers = run("predict", fast, "--json", stdin="a very good film\nnot a good film\n").stdout
    assert [json.loads(line)["label"] for line in answers.splitlines()] == ["yes", "no"]


@pytest.mark.parametrize("command", ["export", "train"])
def test_what_needs_a_model_in_pytorch_says_so_of_an_exported_one(
    certified: tuple[Path, Result], tmp_path: Path, run: Run, command: str
) -> None:
    home, _ = certified
    data = ["--train", home / "train.csv"] if command == "train" else []
    refused = run(command, home / "int8", "--out", tmp_path / "again", *data)
    assert refused.exit_code == 1
    assert (
        "is exported, so it has no weights for PyTorch; use the model that it was made from" in refused.stderr
    )
    assert not [*tmp_path.iterdir()]


def test_an_int8_export_leaves_the_certificate_of_fp32_out_and_names_the_next_commands(
    certified: tuple[Path, Result], ask: Ask
) -> None:
    home, done = certified
    assert "does not apply" in done.stderr
    assert f"offramp trace {home / 'int8'}" in done.stdout
    assert f"offramp calibrate {home / 'int8'} new.trace --guarantee 0.3 --delta 0.05" in done.stdout
    assert "confidence, at most" not in (home / "int8" / "README.md").read_text()
    assert ask("info", home / "int8")["certificate"] is None


def test_an_fp32_export_keeps_the_certificate(
    certified: tuple[Path, Result], tmp_path: Path, ask: Ask, run: Run
) -> None:
    done = run("export", certified[0] / "films", "--out", tmp_path / "fp32")
    assert "does not apply" not in done.stderr
    assert "confidence, at most" in (tmp_path / "fp32" / "README.md").read_text()
    assert ask("info", tmp_path / "fp32")["certificate"] is not None


def test_export_can_calibrate_again(home: Path, ask: Ask) -> None:
    ask("calibrate", home / "films", home / "dev.trace", "--rule", "margin", "--max-loss", 50)
    made = ask(
        *("export", home / "films", "--precision", "int8", "--out", home / "fast"),
        *("--data", home / "dev.csv", "--guarantee", 0.6, "--delta", 0.2),
    )
    assert made["policy"].startswith("margin")
    rows = len((home / "dev.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert made["certificate"]["examples"] == rows - -(
        -rows // 5
    )  # without those that the scales were found on
    config = json.loads((home / "fast" / "config.json").read_text(encoding="utf-8"))
    assert str(Policy.from_json(config["policy"])) == made["policy"]
    assert Manifest.load(home / "fast").precision == "int8"
    assert (home / "fast" / "README.md").is_file()


def test_int8_scales_come_from_the_data_or_with_a_warning_from_built_in_sentences(
    certified: tuple[Path, Result], tmp_path: Path, run: Run
) -> None:
    home, built_in = certified
    assert "built-in English sentences; pass --data with texts like your own" in built_in.stderr
    own = run(
        *("export", home / "films", "--precision", "int8", "--out", tmp_path / "own"),
        *("--data", home / "dev.csv"),
    )
    assert own.exit_code == 0, own.output
    assert "built-in" not in own.stderr
    graphs = [(folder / "stages.onnx").read_bytes() for folder in (home / "int8", tmp_path / "own")]
    assert graphs[0] != graphs[1]


@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        (["--precision", "int3"], 1, "int3"),
        (["--max-loss", 1], 1, "examples and a target"),
        (["--data", "dev.csv"], 1, "examples and a target"),
        (["--data", "bad.csv", "--max-loss", 1], 1, "line 3: label 'perhaps'"),
        (["--data", "dev.csv", "--guarantee", 0.0001], 3, "0.0001"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    home: Path, run: Run, flags: list[Any], code: int, reason: str
) -> None:
    (home / "bad.csv").write_text("text,label\ngood film,yes\nbad film,perhaps\n", encoding="utf-8")
    flags = [home / flag if str(flag).endswith(".csv") else flag for flag in flags]
    done = run("export", home / "films", "--out", home / "fast", *flags)
    assert done.exit_code == code
    assert reason in done.stderr
    assert not [*home.glob("*fast*")]


@pytest.fixture(scope="module")
def portable(certified: tuple[Path, Result], run: Run) -> Path:
    """A folder with `own`, exported with a certificate, and `portable`, the same for other libraries."""
    home = certified[0]
    for line in (
        ("export", home / "films", "--out", home / "own"),
        ("export", home / "own", "--portable", "--out", home / "portable"),
    ):
        done = run(*line)
        assert done.exit_code == 0, done.output
    assert f"{home / 'portable'}: for other libraries" in done.stdout
    return home


def test_a_portable_folder_is_that_of_a_plain_classifier(portable: Path) -> None:
    config = AutoConfig.from_pretrained(portable / "portable")
    assert config.model_type == "bert"
    assert config.architectures == ["BertForSequenceClassification"]
    assert [config.id2label[index] for index in range(config.num_labels)] == ["no", "yes"]

    own, found = (AutoTokenizer.from_pretrained(portable / name) for name in ("films/model", "portable"))
    texts = ["a very good film", "film", "film " * 100]
    arguments: dict[str, Any] = {"padding": True, "truncation": True}
    trained_length = ModelInfo.read(portable / "own").trained_length
    assert found.model_max_length == trained_length
    assert (
        found(texts, **arguments)["input_ids"]
        == own(texts, **arguments, max_length=trained_length)["input_ids"]
    )


def test_exit_logits_are_an_output_of_a_portable_folder_for_those_who_ask(
    portable: Path, run: Run, tmp_path: Path
) -> None:
    own = portable / "own"
    done = run("export", own, "--portable", "--exit-logits", "--out", tmp_path / "portable")
    assert done.exit_code == 0, done.stderr
    for folder, extra in ((tmp_path / "portable", ["exit_logits"]), (portable / "portable", [])):
        session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
        assert [output.name for output in session.get_outputs()] == ["logits", "layer", *extra]
    alone = run("export", own, "--exit-logits", "--out", tmp_path / "alone")
    assert (alone.exit_code, "with --portable" in alone.stderr) == (1, True)


def test_the_certificate_of_a_portable_folder_is_in_its_card_and_in_its_graph(portable: Path) -> None:
    certificate = ModelInfo.read(portable / "own").policy.certificate
    assert certificate.summary in (portable / "portable/README.md").read_text(encoding="utf-8")
    about = json.loads(metadata_of(portable / "portable/onnx/model.onnx"))
    assert Policy.from_json(about["policy"]).certificate == certificate
    assert about["labels"] == ["no", "yes"]


def test_commands_take_a_portable_folder_like_the_exported_one(
    portable: Path, run: Run, tmp_path: Path
) -> None:
    texts = "a very good film\nnot a good film\nfilm\n" * 3
    rows = "".join(
        f"{'not ' * (row % 2)}good {'film ' * row},{'no' if row % 2 else 'yes'}\n" for row in range(40)
    )
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    data = ("--data", tmp_path / "texts.csv", "--text", "text", "--label", "label")

    def outputs(*line: Any, stdin: str | None = None) -> list[Any]:
        found = [run(line[0], portable / name, *line[1:], stdin=stdin) for name in ("own", "portable")]
        for each in found:
            assert each.exit_code == 0, each.output
        return [each.stdout for each in found]

    for more in ([], ["--policy", "patience:2"], ["--policy", "never"], ["--max-layer", "1"]):
        own, found = outputs("predict", "--json", *more, stdin=texts)
        assert own == found, more
    own, found = map(json.loads, outputs("info", "--json"))
    for each in (own, found):  # each names its own graphs
        del each["certificate"]["seal"], each["certificate"]["conditions"]["weights"]
    assert found["certificate"] == own["certificate"]
    same = {name for name in own if name not in ("folder",)}
    assert {name: own[name] for name in same} == {name: found[name] for name in same}
    own, found = (json.loads(each)["runs"] for each in outputs("bench", "--json", "--repeats", "1", *data))
    assert [each["mean_layer"] for each in own] == [each["mean_layer"] for each in found]
    sides = (portable / "own", portable / "portable")
    done = run("certify", *sides, "--texts", tmp_path / "texts.csv", "--guarantee", "0.5", "--json")
    assert json.loads(done.stdout)["proven"], done.output


def test_a_portable_folder_gets_no_other_policy_and_no_exits(portable: Path, run: Run) -> None:
    refused = run("calibrate", portable / "portable", "--policy", "never")
    assert refused.exit_code == 1
    assert "whose policy is part of its graph" in refused.stderr
    texts = portable / "texts.txt"
    texts.write_text("a good film\n" * 2)
    retrofitted = run("retrofit", portable / "portable", "--texts", texts, "--out", portable / "again")
    assert retrofitted.exit_code == 1
    assert "has exits already; retrofit the model that it was made from" in retrofitted.stderr
    again = run("export", portable / "portable", "--portable", "--out", portable / "again")
    assert again.exit_code == 1
    assert "is a portable folder already" in again.stderr


def metadata_of(graph: Path) -> str:
    (value,) = (each.value for each in onnx.load(graph).metadata_props if each.key == "offramp")
    return str(value)


def test_an_int8_graph_has_the_name_that_transformers_js_expects(
    certified: tuple[Path, Result], tmp_path: Path, run: Run
) -> None:
    done = run("export", certified[0] / "int8", "--portable", "--out", tmp_path / "portable")
    assert done.exit_code == 0, done.output
    graph, quantized = (tmp_path / "portable/onnx" / name for name in ("model.onnx", "model_quantized.onnx"))
    assert graph.samefile(quantized)  # stored once
    config = json.loads((tmp_path / "portable/config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "q8"}
    assert config["offramp"] == json.loads(metadata_of(graph))


def test_a_model_that_cannot_be_made_portable_names_the_next_step(
    certified: tuple[Path, Result], tmp_path: Path, run: Run
) -> None:
    def refusal(model: Path, *flags: Any) -> str:
        refused = run("export", model, "--portable", "--out", tmp_path / "out", *flags)
        assert refused.exit_code == 1
        assert not (tmp_path / "out").exists()
        return str(refused.stderr)

    home, bare = certified[0], Path(shutil.copytree(certified[0] / "int8", tmp_path / "bare"))
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(config | {"policy": None}))
    assert "has no policy; calibrate it first" in refusal(bare)
    assert f"`offramp export {home / 'films/model'} --out NEW`" in refusal(home / "films")
    assert "--portable writes a model as it is" in refusal(home / "int8", "--precision", "int8")
