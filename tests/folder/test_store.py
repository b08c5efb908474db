"""Model folders: reading them without torch, and storing a policy from Python."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

import offramp
from offramp import Classifier, ExitModel, Policy
from offramp.errors import CannotLoad, Incompatible
from offramp.folder import find_model, load_model
from offramp.model_info import ModelInfo


@pytest.fixture
def folder(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    place = tmp_path / "model"
    make_model(labels=["red", "green", "blue"]).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def test_info_equals_the_config_of_the_loaded_model(folder: Path) -> None:
    config = load_model(folder)[0].config
    info = ModelInfo.read(folder)
    assert info.labels == ("red", "green", "blue")
    assert list(info.exits) == config.exits
    assert (info.problem, info.head, info.backbone) == (config.problem_type, config.head, "bert")


def test_labels_are_in_the_order_of_the_logits_also_beyond_ten(
    make_model: Callable[..., ExitModel], tmp_path: Path
) -> None:
    names = [f"class {number}" for number in range(12)]
    make_model(labels=names).save_pretrained(tmp_path)
    assert list(ModelInfo.read(tmp_path).labels) == names


def test_a_stored_policy_is_the_default_of_the_next_classifier(folder: Path) -> None:
    stored = offramp.store_policy(folder, "entropy:0.47421875,min_layer=2")
    assert Classifier.from_pretrained(folder).runner.policy == stored
    assert "`entropy:0.4742,min_layer=2`" in (folder / "README.md").read_text()


def test_a_stored_policy_that_cannot_run_is_refused_by_name_of_the_command_that_replaces_it(
    folder: Path,
) -> None:
    offramp.store_policy(folder, "layer:2")
    config = json.loads((folder / "config.json").read_text())
    config["policy"]["threshold"] = 99
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CannotLoad, match=f"offramp calibrate {folder} --policy never"):
        Classifier.from_pretrained(folder, "never")
    offramp.store_policy(folder, "entropy:0.1")
    assert str(Classifier.from_pretrained(folder).runner.policy) == "entropy:0.1"


def test_config_and_card_agree_after_storing_a_policy_was_killed_between_the_two(folder: Path) -> None:
    offramp.store_policy(folder, "entropy:0.1")
    code = f"""
import os, pathlib
from offramp import store_policy
replace, moves = pathlib.Path.replace, iter(range(1))
def replace_or_die(self, target):
    if next(moves, None) is None:
        os._exit(9)
    return replace(self, target)
pathlib.Path.replace = replace_or_die
store_policy({str(folder)!r}, "entropy:0.2")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    policy = ModelInfo.read(folder).policy
    assert str(policy) == "entropy:0.2"
    assert f"`{policy}`" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("layer:9", Incompatible),
        ("gate:0.5", Incompatible),
        ("agreement:0.9", Incompatible),
    ],
)
def test_a_policy_that_the_model_cannot_run_is_not_stored(
    folder: Path, policy: str, error: type[Exception]
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(error):
        offramp.store_policy(folder, policy)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_policy_that_compares_classes_is_not_stored_with_a_regression(
    make_model: Callable[..., ExitModel], tmp_path: Path
) -> None:
    make_model(num_labels=1).save_pretrained(tmp_path)
    with pytest.raises(Incompatible, match="predicts a number"):
        offramp.store_policy(tmp_path, "entropy:0.3")
    assert ModelInfo.read(tmp_path).policy is None
    assert not (tmp_path / "README.md").exists()


def test_a_rule_that_learns_is_stored_with_its_curve_and_takes_another_threshold(
    folder: Path, make_trace: Callable[..., offramp.Trace]
) -> None:
    trace = make_trace(600, exits=5)
    policy = offramp.calibrate(trace, "agreement", offramp.Guarantee(0.1)).policy
    assert offramp.store_policy(folder, policy, trace) == policy
    assert "## Curve" in (folder / "README.md").read_text()
    offramp.store_policy(folder, "agreement:0.5")
    Classifier.from_pretrained(folder).predict(["a", "b"])


def test_storing_a_policy_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys, offramp\n"
        "offramp.store_policy(sys.argv[1], 'patience:2')\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    config = json.loads((folder / "config.json").read_text())
    assert str(Policy.from_json(config["policy"])) == "patience:2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "cannot be read"),
        ("{", "cannot be read"),
        ('{"model_type": "bert"}', "bert model without exits"),
        ('{"model_type": "offramp", "exits": [1]}', "has no 'problem_type'"),
        ('{"model_type": "offramp", "exits": [1], "id2label": ["no", "yes"]}', "does not name the outputs"),
        ('{"model_type": "offramp", "exits": [1], "id2label": {"0": "no", "2": "yes"}}', "name the outputs"),
    ],
)
def test_a_bad_config_is_explained(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CannotLoad, match=message):
        ModelInfo.read(tmp_path)


def test_an_empty_name_is_not_the_model_in_this_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(CannotLoad, match="the name of the model is empty"):
        find_model("")


def test_a_config_with_absurdly_many_layers_is_refused_before_they_are_made(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["encoder_config"]["num_hidden_layers"], config["exits"] = 20_000, [20_000]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CannotLoad, match="num_hidden_layers=20000 is more than 1000"):
        Classifier.from_pretrained(folder)
