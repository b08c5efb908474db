"""A retrofit of tiny random classifiers: what it promises, what it refuses, and how it resumes."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

import offramp.training.run
from offramp import Classifier, ExitModel, Guarantee, OfframpError, Policy, Runner, retrofit, store_policy
from offramp.errors import BadData, CertificateMismatch, NoSafeThreshold, OutputExists
from offramp.measuring.speed import Speed
from offramp.model_info import ModelInfo
from offramp.reports.results import RetrofitResults
from offramp.retrofits import choice, exits, timing
from offramp.retrofits.text_split import check_enough, describe_repeats, split_texts
from offramp.serve.server import load_rung

TEXTS = 600
WORDS = [*"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film"]


def make_texts(count: int = TEXTS, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


@pytest.fixture(scope="session")
def save_classifier(
    tiny_classifier: Callable[..., PreTrainedModel], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """save_classifier("bert", ...) -> the folder of a random fine-tuned model."""

    def save(model_type: str = "bert", **options: Any) -> Path:
        folder: Path = tmp_path_factory.mktemp("original")
        tiny_classifier(model_type, **options).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


def pretend(milliseconds: Mapping[str, float]) -> Callable[..., dict[str, Speed]]:
    """Instead of `compare_speed`: the times of contenders by a part of their name, for one text and in batches."""

    def speeds(contenders: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Speed]:
        found = {name: next(ms for part, ms in milliseconds.items() if part in name) for name in contenders}
        return {name: Speed(ms, ms, ms, ms) for name, ms in found.items()}

    return speeds


@pytest.fixture(scope="module", autouse=True)
def exits_pay() -> Iterator[None]:
    """With tiny models they do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "compare_speed", pretend({"exits": 1, "offramp": 1, "layer": 2, "": 4}))
        yield


@pytest.fixture(scope="session")
def original(save_classifier: Callable[..., Path]) -> Path:
    return save_classifier(labels=["no", "yes"])


@pytest.fixture(scope="module")
def done(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A retrofit in PyTorch, with an untouched backbone."""
    out = tmp_path_factory.mktemp("retrofit") / "out"
    return retrofit(original, make_texts(), out, 0.1, runtime="torch", data="logs.csv")


def plain_predictions(folder: Path, texts: list[Any]) -> list[str]:
    """What transformers' own pipeline predicts, one text at a time."""
    from transformers import pipeline

    classify = pipeline("text-classification", str(folder), device="cpu")
    return [classify(text)[0]["label"] for text in texts]


def changed_predictions(done: Any) -> int:
    """Test texts on which the retrofitted model differs from the original."""
    return round(done.results.retrofitted.losses["changed"] * done.results.examples["test"])


def test_changed_predictions_are_counted_against_transformers_own(original: Path, done: Any) -> None:
    test = split_texts(make_texts()).test.texts
    found = [each.label for each in Classifier.from_pretrained(done.folder).predict(test)]
    expected = plain_predictions(original, test)
    assert changed_predictions(done) == sum(a != b for a, b in zip(found, expected, strict=True))
    assert changed_predictions(done) / len(test) <= 0.1
    assert done.results.retrofitted.mean_layer < 4


def test_the_certificate_names_the_model_that_it_protects(original: Path, done: Any) -> None:
    certificate = Classifier.from_pretrained(done.folder).runner.policy.certificate
    assert certificate is not None
    assert certificate.reference == original.name
    assert certificate.summary == (
        f"With 95% confidence, at most 10% of predictions differ from {original.name} (on data like logs.csv)."
    )
    assert certificate.summary in str(done)
    card = (done.folder / "README.md").read_text()
    assert certificate.summary in card
    assert f"\n# {done.folder.parent.name}\n" in card
    assert certificate.summary.split("(")[0] in (done.folder.parent / "report" / "report.html").read_text()


def test_the_card_promises_only_what_the_sealed_certificate_does(done: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(done.folder, tmp_path / "model"))
    record = json.loads((folder / "retrofit.json").read_text())
    record["certificate"]["bounds"][0]["epsilon"] = 0.0001
    (folder / "retrofit.json").write_text(json.dumps(record))
    store_policy(folder, "entropy:0.5")
    card = (folder / "README.md").read_text()
    assert "It has no certificate: nothing is guaranteed on other data." in card
    assert "confidence" not in card
    assert "at most" not in card


def test_the_report_shows_the_policy_that_is_shipped(done: Any) -> None:
    section = json.loads((done.folder.parent / "report" / "report.json").read_text())["sections"][0]
    assert section["shipped"]["policy"] == str(Classifier.from_pretrained(done.folder).runner.policy)
    shares = np.array(section["shipped"]["point"]["exits"]) / done.results.examples["test"]
    assert shares == pytest.approx(done.results.exits)


def test_full_depth_of_an_untouched_backbone_is_bit_equal_to_the_original(
    original: Path, done: Any, padded: dict[str, torch.Tensor]
) -> None:
    from transformers import AutoModelForSequenceClassification

    plain = AutoModelForSequenceClassification.from_pretrained(original)
    model = ExitModel.from_pretrained(done.folder)
    with torch.no_grad():
        assert torch.equal(plain(**padded).logits, model(**padded).logits)
    assert done.results.full_depth_bit_equal is True
    full = done.results.comparison[1]
    assert (full.name, full.losses, full.mean_layer) == ("fp32, full depth", {"changed": 0}, 4)


def test_a_finished_retrofit_is_returned_as_it_is(
    original: Path, done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "train", None)
    monkeypatch.setattr(exits, "collect", None)
    out = done.folder.parent
    again = retrofit(original, make_texts(), out, 0.1, runtime="torch", data="logs.csv")
    assert again.results == done.results


def test_an_interrupted_retrofit_resumes_with_the_same_result(
    original: Path, done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(choice, "calibrate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            retrofit(original, make_texts(), tmp_path / "out", 0.1, runtime="torch", data="logs.csv")
    assert not (tmp_path / "out" / "model").exists()
    monkeypatch.setattr(offramp.training.run.Training, "train_heads", interrupt)  # they are trained already
    resumed = retrofit(original, make_texts(), tmp_path / "out", 0.1, runtime="torch", data="logs.csv")
    for name in ("policy", "exits", "certificate"):
        assert getattr(resumed.results, name) == getattr(done.results, name)
    assert resumed.results.retrofitted.losses == done.results.retrofitted.losses


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_ladder_of_larger_bounds_is_certified_for_a_server_under_load(
    original: Path, tmp_path: Path
) -> None:
    done = retrofit(original, make_texts(), tmp_path / "out", 0.1, runtime="torch", ladder=[0.3])
    rung = Policy.from_json(json.loads((tmp_path / "out" / "rung-1.json").read_text()))
    assert rung.certificate is not None
    assert rung.certificate.epsilon == 0.3
    assert done.results.certificate.rules_tried == rung.certificate.rules_tried == 3 * 2  # rules and rungs
    assert load_rung(Runner.from_pretrained(done.folder), tmp_path / "out" / "rung-1.json") == rung


def test_other_texts_or_another_seed_do_not_mix_with_a_retrofit(original: Path, done: Any) -> None:
    out = done.folder.parent
    with pytest.raises(OfframpError, match="other texts"):
        retrofit(original, make_texts(seed=1), out, 0.1, runtime="torch")
    with pytest.raises(OfframpError, match="other seed"):
        retrofit(original, make_texts(), out, 0.1, runtime="torch", seed=1)


def test_a_folder_with_other_files_is_not_touched(original: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OfframpError, match="not empty"):
        retrofit(original, make_texts(), tmp_path, 0.1, runtime="torch")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_output_folder_is_named(original: Path, tmp_path: Path) -> None:
    file = tmp_path / "logs.csv"
    file.write_text("mine")
    with pytest.raises(OutputExists, match=r"logs\.csv is a file; choose another folder"):
        retrofit(original, make_texts(), file, 0.1, runtime="torch")


def test_auto_keeps_one_of_two_precisions_and_says_why(
    save_classifier: Callable[..., Path], tmp_path: Path
) -> None:
    # two layers, because each is exported twice
    original = save_classifier(layers=2, labels=["no", "yes"])
    found = retrofit(original, make_texts(), tmp_path / "out", 0.15, rule="entropy")
    assert found.results.precision in ("fp32", "int8")
    assert found.results.kept_because
    assert found.results.certificate.rules_tried == 2  # one rule in two precisions
    test = split_texts(make_texts()).test.texts
    predicted = Classifier.from_pretrained(found.folder).predict(test)
    labels = [each.label for each in predicted]
    changed = sum(a != b for a, b in zip(labels, plain_predictions(original, test), strict=True))
    assert changed == changed_predictions(found)

    # the folder for other libraries, with nothing of offramp
    assert found.portable == tmp_path / "out/portable"
    session = onnxruntime.InferenceSession(found.portable / "onnx/model.onnx")
    texts = AutoTokenizer.from_pretrained(found.portable)(test, padding=True, return_tensors="np")
    logits, layers = session.run(["logits", "layer"], {name: texts[name] for name in texts})
    assert ["no yes".split()[row.argmax()] for row in logits] == labels
    assert layers.tolist() == [each.layer for each in predicted]


def test_exits_that_do_not_pay_are_left_out(
    save_classifier: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "FEWEST_TO_TELL", 20)
    monkeypatch.setattr(timing, "compare_speed", pretend({"every": 40, "last": 4, "offramp": 1, "": 2}))
    original = save_classifier(layers=2, labels=["no", "yes"])
    lines: list[str] = []
    texts, out = make_texts(), tmp_path / "out"
    found = retrofit(original, texts, out, 0.15, rule="entropy", precision="fp32", log=lines.append)
    assert len(found.results.layers) == 2
    (line,) = (line for line in lines if "would take more time than they save" in line)
    assert line.startswith(f"fp32: exits at layers {found.results.layers[0]}, 2 stay; those at ")
    test = split_texts(texts).test.texts
    at_full_depth = Classifier.from_pretrained(found.folder, "never").predict(test)
    assert [each.label for each in at_full_depth] == plain_predictions(original, test)
    assert ModelInfo.read(out / "work/plain-fp32").exits == (2,)


@pytest.mark.parametrize(("full_depth", "layer", "kept"), [(1.02, 1.0, 4), (1.2, 0.9, 1), (1.2, 1.1, None)])
def test_one_layer_for_all_is_kept_where_it_is_as_fast(
    full_depth: float,
    layer: float,
    kept: int | None,
    original: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    times = {"full depth": full_depth, "layer": layer, "exits": 1, "offramp": 1, "transformers": 4}
    monkeypatch.setattr(timing, "compare_speed", pretend(times))
    found = retrofit(original, make_texts(), tmp_path / "out", 0.3, runtime="torch")
    classifier = Classifier.from_pretrained(found.folder)
    layers = {each.layer for each in classifier.predict(split_texts(make_texts()).test.texts)}
    assert classifier.runner.policy.certificate is not None
    assert classifier.runner.policy.certificate.epsilon == 0.3
    assert found.results.fixed_layer == kept
    if kept is None:
        assert len(layers) > 1
    else:
        assert layers == {kept}
        assert (
            "so all texts run to full depth" if kept == 4 else f"so all texts stop at layer {kept}"
        ) in str(found)


def test_a_finished_retrofit_in_pytorch_has_no_folder_for_other_libraries(done: Any) -> None:
    assert done.portable is None
    assert done.to_json()["portable"] is None


def test_tuning_keeps_the_original_as_reference_and_for_the_audit(original: Path, tmp_path: Path) -> None:
    found = retrofit(original, make_texts(), tmp_path / "out", 0.2, runtime="torch", tune=True, epochs=1)
    assert found.results.full_depth_bit_equal is None
    test = split_texts(make_texts()).test.texts
    labels = [each.label for each in Classifier.from_pretrained(found.folder).predict(test)]
    changed = sum(a != b for a, b in zip(labels, plain_predictions(original, test), strict=True))
    assert changed == changed_predictions(found)
    reference = Classifier.from_pretrained(found.folder / "reference")
    assert [each.label for each in reference.predict(test)] == plain_predictions(original, test)


def test_pairs_are_retrofitted_as_pairs(original: Path, tmp_path: Path) -> None:
    pairs = list(zip(make_texts(), make_texts(seed=1), strict=True))
    found = retrofit(original, pairs, tmp_path / "out", 0.3, runtime="torch")
    part = split_texts(pairs).test.texts
    with torch.no_grad():
        expected = [plain_logits(original, pair).argmax(-1).item() for pair in part]
    names = ["no", "yes"]
    found_labels = [each.label for each in Classifier.from_pretrained(found.folder).predict(part)]
    changed = sum(a != names[int(b)] for a, b in zip(found_labels, expected, strict=True))
    assert changed == changed_predictions(found)


def plain_logits(folder: Path, pair: Any) -> torch.Tensor:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(*pair, return_tensors="pt")
    logits: torch.Tensor = AutoModelForSequenceClassification.from_pretrained(folder)(**tokens).logits
    return logits


def test_regression_needs_a_tolerance_and_keeps_to_it(
    save_classifier: Callable[..., Path], tmp_path: Path
) -> None:
    folder = save_classifier(num_labels=1, problem_type="regression")
    with pytest.raises(OfframpError, match="tolerance"):
        retrofit(folder, make_texts(), tmp_path / "out", 0.1, runtime="torch")
    target = Guarantee(0.3, tolerance=5.0)
    found = retrofit(folder, make_texts(), tmp_path / "out", target, runtime="torch", rule="layer")
    assert found.results.certificate.tolerance == 5.0
    assert found.results.retrofitted.mean_layer < 4


def test_multi_label_models_count_a_text_as_changed_if_any_label_changes(
    save_classifier: Callable[..., Path], tmp_path: Path
) -> None:
    folder = save_classifier(num_labels=3, problem_type="multi_label_classification")
    found = retrofit(
        folder, make_texts(), tmp_path / "out", 0.6, runtime="torch", label_names=["x", "y", "z"]
    )
    test = split_texts(make_texts()).test.texts
    labels = [each.label for each in Classifier.from_pretrained(found.folder).predict(test)]
    with torch.no_grad():
        truth = [plain_logits(folder, (text,))[0] > 0 for text in test]
    expected = [tuple(name for name, on in zip("xyz", row, strict=True) if on) for row in truth]
    changed = sum(set(a) != set(b) for a, b in zip(labels, expected, strict=True))
    assert changed == changed_predictions(found)


def test_labels_by_name_or_number_only_add_scores(original: Path, done: Any, tmp_path: Path) -> None:
    labels = np.arange(TEXTS) % 2
    names = ["yes" if label else "no" for label in labels]
    found = retrofit(
        original, make_texts(), tmp_path / "out", 0.1, labels=names, runtime="torch", data="logs.csv"
    )
    again = retrofit(
        original, make_texts(), tmp_path / "out", 0.1, labels=labels, runtime="torch", data="logs.csv"
    )
    assert again == found
    scores = [row.scores for row in found.results.comparison]
    expected = plain_predictions(original, split_texts(make_texts(), labels).test.texts)
    truth = ["yes" if label else "no" for label in split_texts(make_texts(), labels).test.labels]
    right = np.mean([a == b for a, b in zip(expected, truth, strict=True)])
    assert found.results.policy == done.results.policy
    assert scores[0]["acc"] == pytest.approx(right)
    assert scores[1] == scores[0]


def test_with_labels_the_guarantee_may_be_about_the_net_accuracy(original: Path, tmp_path: Path) -> None:
    labels, target = np.arange(TEXTS) % 2, Guarantee(0.25, risk="accuracy_drop")
    found = retrofit(original, make_texts(), tmp_path / "out", target, labels=labels, runtime="torch")
    proof, calibration = found.results.certificate, split_texts(make_texts(), labels).calibration
    names = np.array(["no", "yes"])[calibration.labels]
    now = [each.label for each in Classifier.from_pretrained(found.folder).predict(calibration.texts)]
    before = plain_predictions(original, calibration.texts)
    assert proof.observed_risk == pytest.approx(np.mean(names == before) - np.mean(names == now))
    assert f"is at most 0.25 below that of {original.name}." in proof.promise


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["same text"] * TEXTS, "100% of the calibration texts repeat others"),
        (make_texts(40), r"not enough texts \(40\): .* in all"),
        ([*make_texts(599), 7], "item 599 is int 7"),
        ([], "there are no texts"),
        ("a single text", "put it into a list"),
    ],
)
def test_useless_texts_are_refused_before_any_work(
    texts: list[Any], message: str, original: Path, tmp_path: Path
) -> None:
    with pytest.raises(OfframpError, match=message):
        retrofit(original, texts, tmp_path / "out", 0.1, runtime="torch")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "entrpy"}, "entropy"),
        ({"rule": "gate"}, "this model has no gate"),
        ({"guarantee": Guarantee({"yes": 0.1, "noo": 0.1})}, "noo"),
        ({"guarantee": Guarantee({"yes": 0.1})}, "no bound for no"),
        ({"guarantee": Guarantee(0.1, risk="accuracy_drop")}, "needs labels"),
        ({"guarantee": Guarantee(0.1, risk="score")}, "needs tolerance="),
        ({"guarantee": Guarantee(0.1, risk="missed")}, "is about yes and no; pass decide="),
        ({"seed": -1}, "seed=-1"),
        ({"labels": [0, 1]}, "2 labels for 600 texts"),
        ({"labels": [0.5] * 600}, r"row 0 has the label 0\.5"),
        ({"labels": [0] * 599 + [2]}, "row 599 has the label 2, expected 0 to 1"),
        ({"labels": ["no"] * 599 + ["maybe"]}, "row 600: label 'maybe', expected one of no, yes"),
        ({"labels": ["no"] * 599 + [""]}, "row 600: no label; label all rows, or none"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused_before_any_work(
    options: dict[str, Any], message: str, original: Path, tmp_path: Path
) -> None:
    with pytest.raises(OfframpError, match=message):
        retrofit(
            original, make_texts(), tmp_path / "out", **{"guarantee": 0.1, "runtime": "torch", **options}
        )
    assert not (tmp_path / "out").exists()


def test_after_a_refusal_another_guarantee_continues_in_the_same_folder(
    original: Path, tmp_path: Path
) -> None:
    with pytest.raises(NoSafeThreshold):
        retrofit(original, make_texts(), tmp_path / "out", 0.03, runtime="torch", rule="layer")
    lines: list[str] = []
    found = retrofit(original, make_texts(), tmp_path / "out", 0.2, runtime="torch", log=lines.append)
    assert "running every exit on the calibration texts in fp32" not in lines
    assert found.results.certificate.epsilon == 0.2
    assert found.results.certificate.delta == pytest.approx(0.1)  # of two attempts
    elsewhere = retrofit(original, make_texts()[::-1], tmp_path / "elsewhere", 0.2, runtime="torch", seed=1)
    assert elsewhere.results.certificate.delta == pytest.approx(0.15), (
        "another folder and seed is a third attempt"
    )
    assert "confidence of this one is 90%" in lines[0]
    shutil.rmtree(tmp_path / "out" / "work")
    assert retrofit(original, make_texts(), tmp_path / "out", 0.2, runtime="torch") == found
    with pytest.raises(OutputExists, match=r"another policy than .* its folder work, .* was deleted"):
        retrofit(original, make_texts(), tmp_path / "out", 0.1, runtime="torch")


def test_another_guarantee_on_a_finished_retrofit_replaces_its_policy_and_pays_for_the_choice(
    original: Path, done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lines = Path(shutil.copytree(done.folder.parent, tmp_path / "out")), []
    for name in ("train", "collect"):
        monkeypatch.setattr(exits, name, None)  # the exits and their outputs are there

    def again(guarantee: float, **options: Any) -> Any:
        return retrofit(
            original, make_texts(), out, guarantee, runtime="torch", log=lines.append, **options
        ).results

    other = again(0.3, rule="entropy", ladder=[0.5])
    assert other.certificate.epsilon == 0.3
    assert other.certificate.delta == pytest.approx(0.1)
    assert other.policy.startswith("entropy:")
    assert f"{out} is finished, with another policy; the exits and their outputs are reused" in lines
    classifier = Classifier.from_pretrained(out)
    assert str(classifier.runner.policy) == other.policy
    assert classifier.runner.policy.certificate == other.certificate
    assert other.certificate.summary in (out / "model" / "README.md").read_text()
    assert load_rung(classifier.runner, out / "rung-1.json").certificate.epsilon == 0.5  # type: ignore[union-attr]

    with pytest.raises(NoSafeThreshold):
        again(0.05, rule="layer")
    assert f"{out} keeps its policy; `offramp info {out}` shows it" in lines[-1]
    assert RetrofitResults.load(out / "model") == other

    first = again(0.1)
    assert (first.policy, first.certificate) == (done.results.policy, done.results.certificate)
    assert not (out / "rung-1.json").exists()
    assert not [*out.glob(".*.unfinished")]


@pytest.mark.parametrize("how", ["replaced", "edited"])
def test_a_retrofit_whose_policy_is_not_the_one_it_chose_is_not_returned_as_finished(
    how: str, original: Path, done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(done.folder.parent, tmp_path / "out"))
    if how == "replaced":  # as `offramp calibrate` does
        store_policy(out / "model", "entropy:0.5")
    else:
        file = out / "model" / "retrofit.json"
        record = json.loads(file.read_text())
        record["certificate"]["bounds"][0]["epsilon"] = 0.0001
        file.write_text(json.dumps(record))
    for name in ("train", "collect"):
        monkeypatch.setattr(exits, name, None)  # the exits and their outputs are there
    again = retrofit(original, make_texts(), out, 0.1, runtime="torch", data="logs.csv")
    assert again.results.certificate == done.results.certificate
    assert Classifier.from_pretrained(out).runner.policy.certificate == done.results.certificate


def test_enough_texts_are_those_that_prove_the_bound_without_errors() -> None:
    # ln(0.05) / ln(0.9) = 28.4, so 29 to calibrate on, which are 40% of 73
    texts = [str(number) for number in range(74)]
    check_enough(split_texts(texts), Guarantee(0.1), 0.05)
    with pytest.raises(OfframpError, match="takes 29 distinct texts to calibrate on, so 74 in all"):
        check_enough(split_texts(texts[:72]), Guarantee(0.1), 0.05)
    # four fifths of delta in each of two precisions: ln(0.02) / ln(0.9) = 37.1
    with pytest.raises(OfframpError, match="takes 38 distinct texts to calibrate on, so 96 in all"):
        check_enough(split_texts(texts), Guarantee(0.1), 0.02)


def test_repeated_texts_do_not_count_as_enough() -> None:
    texts = [f"text {number}" for number in range(300)]
    check_enough(split_texts(texts), Guarantee(0.03), 0.05)
    with pytest.raises(
        OfframpError, match=r"not enough texts \(3000\): .* 100% of the calibration texts repeat"
    ):
        check_enough(split_texts(texts * 10), Guarantee(0.03), 0.05)


def test_the_split_depends_on_the_texts_alone() -> None:
    texts = make_texts()
    backwards = split_texts(texts[::-1])
    for part, same in zip(vars(split_texts(texts)).values(), vars(backwards).values(), strict=True):
        assert sorted(part.texts) == sorted(same.texts)


def test_rows_of_a_text_are_drawn_apart_and_rows_of_a_group_together() -> None:
    apart = split_texts(["same"] * 100)
    assert all(len(part) >= 5 for part in vars(apart).values())
    groups = [number % 40 for number in range(200)]
    split = split_texts([str(number) for number in range(200)], groups=groups)
    members = [{int(text) % 40 for text in part.texts} for part in vars(split).values()]  # type: ignore[arg-type]
    assert len(set.union(*members)) == sum(map(len, members)) == 40
    assert split.unseen("calibration") == 16


def test_repeats_and_near_copies_are_described() -> None:
    split = split_texts([f"text {word}" for word in WORDS] * 5)
    assert "repeat another row" in describe_repeats(split)[0]
    orders = [f"Order {number} of Ann {number} has shipped" for number in range(50)]
    (line,) = describe_repeats(split_texts(orders))
    assert line.startswith(
        "100% of the calibration rows differ from one to learn from only in numbers and names"
    )
    assert describe_repeats(split_texts([f"{word} {other}" for word in WORDS for other in WORDS])) == []


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ({"yes": 0.1, "no": 0.1}, "takes 58 distinct texts to calibrate on"),  # 29 of each class
        (0.0002, "at most 13000 are used"),
    ],
)
def test_what_a_bound_needs_allows_for_classes_and_the_split(bound: Any, message: str) -> None:
    with pytest.raises(OfframpError, match=message):
        check_enough(split_texts([str(number) for number in range(98)]), Guarantee(bound), 0.05)


def test_models_that_cannot_be_retrofitted_are_refused_by_cause(
    original: Path, done: Any, tiny_encoder: Callable[..., PreTrainedModel], tokenizer: Any, tmp_path: Path
) -> None:
    tiny_encoder("bert").save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    config = json.loads((original / "config.json").read_text())
    for name, change in {"gpt2": {"model_type": "gpt2"}, "empty": {}}.items():
        (tmp_path / name).mkdir()
        if change:
            (tmp_path / name / "config.json").write_text(json.dumps(config | change))
            tokenizer.save_pretrained(tmp_path / name)
    shutil.copytree(original, tmp_path / "untokenized", ignore=shutil.ignore_patterns("*token*", "vocab*"))
    for folder, message in {
        tmp_path / "encoder": "BertModel, not a classifier of texts or tokens",
        tmp_path / "gpt2": "gpt2",
        tmp_path / "untokenized": "has no tokenizer",
        tmp_path / "empty": "empty",
        done.folder: "has exits already",
    }.items():
        with pytest.raises(OfframpError, match=message):
            retrofit(folder, make_texts(), tmp_path / "out", 0.1, runtime="torch")
    assert not (tmp_path / "out").exists()


def test_a_model_without_label_names_is_retrofitted_with_a_warning(
    save_classifier: Callable[..., Path], tmp_path: Path
) -> None:
    folder = save_classifier()
    with pytest.warns(UserWarning, match="LABEL_0, LABEL_1"):
        found = retrofit(folder, make_texts(), tmp_path / "out", 0.1, runtime="torch")
    assert Classifier.from_pretrained(found.folder).predict("good film").label in ("LABEL_0", "LABEL_1")


def test_nothing_is_written_where_no_policy_is_safe(original: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSafeThreshold):
        retrofit(original, make_texts(), tmp_path / "out", 0.03, runtime="torch", rule="layer")
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize(
    "options", [{"precision": "int4"}, {"runtime": "tpu"}, {"runtime": "torch", "precision": "int8"}]
)
def test_unknown_runtimes_and_precisions_are_refused(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OfframpError, match=r"precision=|runtime="):
        offramp.retrofit("model", make_texts(), tmp_path / "out", **options)  # type: ignore[arg-type]


def test_an_untouched_model_needs_no_copy_of_the_original(done: Any) -> None:
    assert not (done.folder / "reference").exists()


def test_a_second_retrofit_into_the_folder_of_a_running_one_is_refused(
    original: Path, tmp_path: Path
) -> None:
    texts, out = make_texts(), tmp_path / "out"

    def start_another(line: str) -> None:
        with pytest.raises(OutputExists, match="another retrofit is running"):
            retrofit(original, texts, out, 0.4, runtime="torch", rule="entropy")
        lines.append(line)

    lines: list[str] = []
    first = retrofit(original, texts, out, 0.2, runtime="torch", rule="entropy", log=start_another)
    assert lines
    assert first.results.certificate.epsilon == 0.2
    assert RetrofitResults.load(out / "model").asked["guarantee"]["epsilon"] == 0.2


@pytest.fixture(scope="module")
def decided(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A retrofit at an operating point."""
    out = tmp_path_factory.mktemp("decided") / "out"
    return retrofit(
        original, make_texts(seed=3), out, 0.1, decide="yes>=0.6", runtime="torch", data="logs.csv"
    )


def test_decisions_at_the_operating_point_are_what_is_certified_and_counted(
    original: Path, decided: Any
) -> None:
    from transformers import pipeline

    classifier, split = Classifier.from_pretrained(decided.folder), split_texts(make_texts(seed=3))
    test, others = split.test.texts, split.calibration.texts[:100]
    found = classifier.predict(test)
    assert [each.decision for each in found] == [each.probabilities["yes"] >= 0.6 for each in found]
    plain = pipeline("text-classification", str(original), device="cpu", top_k=None)
    scores = [{each["label"]: each["score"] for each in plain([text])[0]}["yes"] for text in [*test, *others]]
    expected = [score >= 0.6 for score in scores]
    assert {*expected} == {True, False}
    differ = sum(a.decision != b for a, b in zip(found, expected[: len(test)], strict=True))
    assert changed_predictions(decided) == differ
    certificate = classifier.runner.policy.certificate
    assert certificate is not None
    assert certificate.summary == (
        f"With 95% confidence, at most 10% of decisions differ from {original.name}, where the decision is yes>=0.6 "
        "(on data like logs.csv)."
    )


def test_another_operating_point_invalidates_the_certificate_by_name(decided: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(decided.folder, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decide": "yes>=0.5"}))
    with pytest.warns(CertificateMismatch, match=r"decision yes>=0\.6 \(here: yes>=0\.5\)"):
        classifier = Classifier.from_pretrained(folder)
    assert classifier.runner.policy.certificate is None


def test_an_operating_point_of_an_unknown_label_is_refused_before_any_work(
    original: Path, tmp_path: Path
) -> None:
    with pytest.raises(OfframpError, match="unknown label 'yse'; did you mean yes"):
        retrofit(original, make_texts(seed=3), tmp_path / "out", 0.1, decide="yse>=0.6", runtime="torch")
    assert not (tmp_path / "out").exists()


LANGUAGES = ["de" if number % 2 else "en" for number in range(TEXTS)]
BOTH = {"missed": 0.4, "false_alarm": 0.3}


def test_several_risks_are_certified_together_in_every_language(original: Path, tmp_path: Path) -> None:
    texts, target = make_texts(seed=3), Guarantee(BOTH, by="language")
    done = retrofit(
        original, texts, tmp_path / "out", target, decide="yes>=0.2", categories=LANGUAGES, runtime="torch"
    )
    proof = Classifier.from_pretrained(done.folder).runner.policy.certificate
    assert proof is not None
    bounds = {(bound.risk, bound.group): bound for bound in proof.bounds}
    assert bounds.keys() == {(risk, language) for risk in BOTH for language in ("de", "en")}
    assert all(bound.epsilon == BOTH[bound.risk] for bound in proof.bounds)
    part = split_texts(texts, categories=LANGUAGES).calibration
    before = original_decisions(original, part.texts)
    now = Classifier.from_pretrained(done.folder).predict(part.texts)
    for (risk, language), bound in bounds.items():
        rows = [
            row
            for row, said_yes in enumerate(before)
            if part.categories[row] == language and said_yes == (risk == "missed")
        ]
        assert bound.examples == len(rows)
        assert bound.observed_risk == pytest.approx(
            np.mean([now[row].decision != before[row] for row in rows])
        )
    assert "in every language (de, en)" in proof.summary
    assert {group.name for group in done.results.changes["language"]} == {"de", "en"}
    assert {"changed", *BOTH} == done.results.retrofitted.losses.keys()
    assert "missed, % of yes" in done.results.table()


def original_decisions(folder: Path, texts: list[str]) -> list[bool]:
    """By transformers' own pipeline, at yes>=0.2."""
    from transformers import pipeline

    scores = pipeline("text-classification", str(folder), device="cpu", top_k=None)
    return [{each["label"]: each["score"] for each in scores([text])[0]}["yes"] >= 0.2 for text in texts]


def test_a_language_with_too_few_texts_is_named_before_any_work(original: Path, tmp_path: Path) -> None:
    languages = ["fr" if number < 20 else each for number, each in enumerate(LANGUAGES)]
    with pytest.raises(BadData, match=r"\d+ texts of the language 'fr' \(needed: 12, about 30 in all\)"):
        retrofit(
            original,
            make_texts(),
            tmp_path / "out",
            Guarantee(0.25, by="language"),
            categories=languages,
            runtime="torch",
        )
    assert not (tmp_path / "out").exists()


def test_too_few_yes_to_prove_what_is_missed_are_found_before_training(
    original: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=r"\d+ texts that the original says yes to \(needed: \d+, about"):
        retrofit(
            original,
            make_texts(seed=3),
            tmp_path / "out",
            Guarantee(0.1, risk="missed"),
            decide="yes>=0.99",
            runtime="torch",
        )
    assert not (tmp_path / "out/work/training").exists()


def test_a_bound_at_every_exit_has_a_threshold_for_each(original: Path, tmp_path: Path) -> None:
    texts = make_texts(1500, seed=4)
    done = retrofit(
        original, texts, tmp_path / "out", Guarantee(0.35, by="exit"), rule="entropy", runtime="torch"
    )
    policy = Classifier.from_pretrained(done.folder).runner.policy
    assert policy.certificate is not None
    assert isinstance(policy.threshold, tuple)
    exits = [bound.group for bound in policy.certificate.bounds]
    taken = Classifier.from_pretrained(done.folder).predict(split_texts(texts).calibration.texts)
    assert {f"layer {each.layer}" for each in taken} <= {*exits}
    assert "at every exit taken (layer" in done.results.certificate.summary


def test_further_texts_are_learned_from_and_neither_calibrated_nor_tested_on(
    original: Path, tmp_path: Path
) -> None:
    texts, more = make_texts(), make_texts(200, seed=1)
    plain, split = split_texts(texts), split_texts(texts, learn_from=[*more, texts[0]])
    assert split.learn.texts == [*plain.learn.texts, *more, texts[0]]
    for part in ("fit", "calibration", "test"):
        assert getattr(split, part).texts == getattr(plain, part).texts
    home = next(
        part for part in ("fit", "calibration", "test", "learn") if texts[0] in getattr(plain, part).texts
    )
    if home != "learn":  # it has been learned from, so it proves nothing about new texts
        assert split.unseen(home) < plain.unseen(home)
    done = retrofit(original, texts, tmp_path / "out", 0.1, runtime="torch", learn_from=more)
    assert done.results.examples["learn"] == len(plain.learn) + 200
    with pytest.raises(OutputExists, match="other learn_from"):
        retrofit(original, texts, tmp_path / "out", 0.1, runtime="torch")
