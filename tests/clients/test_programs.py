"""Other libraries run portable folders with the predictions of `Classifier`: programs of docs/other-languages.md."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offramp.folder.manifest import Manifest
from offramp.inference import Classifier, Prediction
from offramp.model_info import ModelInfo
from offramp.onnx_export.portable import usage
from offramp.policy import Policy

Run = Callable[..., list[str]]
Programs = Mapping[str, str]
NEVER = Policy.parse("never")
TEXTS = ["good film", "a b c d e f", "bad", "film bad a b", "i j k", ""]
LONG = "a b c " * 40
PAIR = ("good film", "bad")


def logits(predictions: list[Prediction]) -> Any:
    return pytest.approx([x for each in predictions for x in each.logits], abs=1e-3)


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


def test_plain_onnxruntime_predicts_as_the_classifier(
    python: Run, programs: Programs, portable: Path, classifier: Classifier
) -> None:
    texts = [*TEXTS, LONG]
    found = [json.loads(line) for line in python(programs["plain.py"], portable, *texts)]
    expected, deep = classifier.predict(texts), classifier.predict(texts, policy=NEVER)
    assert len({each.layer for each in expected}) > 2
    assert found == [
        {"label": here.label, "layer": here.layer, "at full depth": full.label}
        for here, full in zip(expected, deep, strict=True)
    ]


def test_transformers_js_predicts_as_the_classifier(
    node: Run, programs: Programs, portable: Path, classifier: Classifier
) -> None:
    piped, raw = map(json.loads, node(programs["classify.mjs"], portable, *TEXTS))
    expected = classifier.predict(TEXTS)
    assert [each["label"] for each in piped] == [each.label for each in expected]
    assert [each["score"] for each in piped] == pytest.approx([each.score for each in expected], abs=1e-3)
    assert raw["layers"] == [each.layer for each in expected]
    assert flat(raw["logits"]) == logits(expected)


def test_transformers_js_finds_the_graph_by_the_name_of_its_precision(
    node: Run, portable: Path, precision: str
) -> None:
    dtype = {"fp32": "fp32", "int8": "q8"}[precision]
    program = f"""
        import {{ AutoModel }} from "@huggingface/transformers";
        for (const options of [{{}}, {{ dtype: "{dtype}" }}]) {{
          const model = await AutoModel.from_pretrained(process.argv[2], options);
          console.log(model.sessions.model.config.dtype, model.sessions.model.outputNames.join());
        }}"""
    assert node(program, portable) == [f"{dtype} logits,layer"] * 2


def test_pairs_in_transformers_js_are_those_of_the_card(
    node: Run, portable: Path, classifier: Classifier, own: Mapping[str, Path], precision: str
) -> None:
    info, manifest = ModelInfo.read(own[precision]), Manifest.load(own[precision])
    program = usage(replace(info, trained_on_pairs=True), manifest).split("```")[1].removeprefix("js")
    for name, value in {
        "./FOLDER": str(portable),
        '"a text"': f'"{PAIR[0]}"',
        "another text": PAIR[1],
    }.items():
        program = program.replace(name, value)
    (printed,) = node(program)
    (expected,) = classifier.predict([PAIR])
    assert json.loads(printed.rpartition(" ")[0]) == logits([expected])


def test_onnxruntime_node_exits_as_the_threshold_says(
    node: Run, programs: Programs, portable: Path, classifier: Classifier
) -> None:
    found = [json.loads(line) for line in node(programs["threshold.mjs"], portable, *TEXTS)]
    early, full = zip(*found, strict=True)
    for runs, policy in ((early, None), (full, NEVER)):
        expected = classifier.predict(TEXTS, policy=policy)
        assert [each["layer"] for each in runs] == [each.layer for each in expected]
        assert flat([each["logits"] for each in runs]) == logits(expected)
