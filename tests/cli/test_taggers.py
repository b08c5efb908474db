"""Taggers on the command line: train, predict, trace, curve, calibrate, and what they refuse."""

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from offramp import Tagger, Trace

Run = Callable[..., Result]
Ask = Callable[..., Any]
TAGS = {"good": "B-QUALITY", "bad": "B-QUALITY", "film": "B-THING", "plot": "I-THING"}


def write_conll(file: Path, texts: int, seed: int) -> Path:
    draw = random.Random(seed)
    words = [draw.choices(["a", "very", "not", *TAGS], k=draw.randint(6, 12)) for _ in range(texts)]
    file.write_text("\n\n".join("\n".join(f"{word} {TAGS.get(word, 'O')}" for word in row) for row in words))
    return file


@pytest.fixture(scope="module")
def tagging(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., Path], run: Run) -> Path:
    """A folder with CoNLL files, the run `ner` and `test.trace`."""
    home = tmp_path_factory.mktemp("tagging")
    encoder = save_encoder(home / "encoder", initializer_range=0.3)
    train, dev = write_conll(home / "train.conll", 60, 0), write_conll(home / "dev.conll", 40, 1)
    write_conll(home / "test.conll", 120, 2)
    quick = ["--epochs", 20, "--learning-rate", 1e-2, "--batch-size", 8, "--exits", "0-4"]
    flags = ["--train", train, "--validation", dev, "--recipe", "elasticbert", "--out", home / "ner"]
    done = run("train", encoder, *flags, *quick, "--argument", "report_to=none")
    assert done.exit_code == 0, done.output
    assert "entity_f1" in done.stdout
    done = run("trace", home / "ner", "--data", home / "test.conll", "--out", home / "test.trace")
    assert done.exit_code == 0, done.output
    return home


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    texts = [
        "a good film",
        "\U0001f642 bad plot\nnot good",
        "",
        "   ",
        "\x1b[31m good \x00 film",
        "good " * 100,
    ]
    file.write_text("\n".join(json.dumps({"id": row, "text": text}) for row, text in enumerate(texts)))
    return file


def test_predictions_of_a_tagger_are_its_spans_layer_and_the_columns_of_the_input(
    tagging: Path, texts: Path, tmp_path: Path, run: Run
) -> None:
    assert run("predict", tagging / "ner", texts, "--out", tmp_path / "out.jsonl").exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    tagger = Tagger.from_pretrained(tagging / "ner")
    assert any(row["spans"] for row in rows)
    for number, row in enumerate(rows):
        assert [*row] == ["spans", "layer", "id", "text"]
        assert row["id"] == number
        expected = tagger.tag(row["text"])
        assert row["layer"] == expected.layer
        found = [(span["start"], span["end"], span["label"], span["text"]) for span in row["spans"]]
        assert found == [(span.start, span.end, span.label, span.text) for span in expected]
        assert all(row["text"][span["start"] : span["end"]] == span["text"] for span in row["spans"])
    assert max(span["end"] for span in rows[-1]["spans"]) == 499  # of 100 words, read in windows
    assert rows[2]["spans"] == rows[3]["spans"] == []


def test_a_csv_file_of_spans_has_them_as_json(tagging: Path, texts: Path, tmp_path: Path, run: Run) -> None:
    assert run("predict", tagging / "ner", texts, "--out", tmp_path / "out.csv").exit_code == 0
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        for span in json.loads(row["spans"]):
            assert row["text"][span["start"] : span["end"]] == span["text"]
    refused = run("predict", tagging / "ner", texts, "--out", tmp_path / "out.tsv")
    assert "offsets would not fit; write jsonl or csv" in refused.stderr


def test_offsets_count_units_of_utf16_on_request(tagging: Path, ask: Ask, run: Run) -> None:
    text = "\U0001f642 good"
    spans = {
        flag: run("predict", tagging / "ner", "--policy", "never", "--json", *flag, stdin=text).stdout
        for flag in ((), ("--utf16",))
    }
    plain, units = (json.loads(line)["spans"][-1] for line in spans.values())
    assert (units["start"], units["end"]) == (plain["start"] + 1, plain["end"] + 1)
    assert text.encode("utf-16-le")[2 * units["start"] : 2 * units["end"]].decode("utf-16-le") == "good"


def test_people_read_spans_layer_and_text(tagging: Path, run: Run) -> None:
    shown = run("predict", tagging / "ner", "--policy", "never", stdin="a good film\nvery")
    first, second = shown.stdout.splitlines()
    assert first == "QUALITY: good; THING: film\t4\ta good film"
    assert second == "\t4\tvery"


def test_an_invalid_surrogate_is_written_as_it_was_read(tagging: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "in.jsonl").write_text(r'{"text": "good \ud83d film"}')
    assert (
        run("predict", tagging / "ner", tmp_path / "in.jsonl", "--out", tmp_path / "o.jsonl").exit_code == 0
    )
    (line,) = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert len(row["text"]) == len("good ? film")
    for span in row["spans"]:
        assert row["text"][span["start"] : span["end"]].replace("\ud83d", "\ufffd") == span["text"]


def test_traces_of_taggers_are_measured_and_calibrated(tagging: Path, run: Run, ask: Ask) -> None:
    curve = run("curve", tagging / "test.trace")
    assert curve.exit_code == 0, curve.stderr
    assert "entity_f1" in curve.stdout
    for risk, claim in (
        ("changed", "at most 30% of texts"),
        ("missed", "have a word that full depth marks and that is no longer marked"),
    ):
        flags = ["--guarantee", 0.3, "--risk", risk, "--rule", "entropy"]
        done = run("calibrate", tagging / "ner", tagging / "test.trace", *flags)
        assert done.exit_code == 0, done.stderr
        assert claim in done.stdout
        assert claim in run("info", tagging / "ner").stdout


def test_a_txt_file_is_traced_by_line_also_blank_lines_and_lines_longer_than_the_model(
    tagging: Path, tmp_path: Path, ask: Ask
) -> None:
    lines = ["a good film", "", "  ", "good " * 100, "very"]
    (tmp_path / "logs.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = ask("trace", tagging / "ner", "--data", tmp_path / "logs.txt", "--out", tmp_path / "logs.trace")
    assert (made["examples"], made["labelled"]) == (5, False)
    trace = Trace.load(tmp_path / "logs.trace")
    assert len(trace) > 5  # one line is read in windows
    marked = trace.by_text(trace.words_of_examples.total(trace.reference_predictions() > 0) > 0)  # type: ignore[union-attr]
    spans = Tagger.from_pretrained(tagging / "ner", "never").tag(lines)
    assert marked.tolist() == [bool(each) for each in spans]
    measured = ask("calibrate", tagging / "ner", tmp_path / "logs.trace", "--policy", "layer:2", "--dry-run")
    assert (measured["examples"], measured["mean_layer"]) == (5, 2)


def test_info_says_what_a_tagger_decides(tagging: Path, trained: Path, ask: Ask) -> None:
    assert ask("info", tagging / "ner")["decide"] == "the most likely tag of each word"
    assert ask("info", trained / "films")["decide"] == "the most likely class"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["predict-files", "{model}", "{folder}/train.conll", "--out", "{folder}/out"], "offramp predict"),
        (["rerank", "{model}", "{csv}"], "offramp predict"),
        (["predict", "{films}", "{csv}", "--utf16"], "only a tagger finds"),
        (
            ["trace", "{model}", "--data", "{csv}", "--by", "query", "--out", "{folder}/x.trace"],
            "--by query: a guarantee for a tagger holds for all texts together",
        ),
        (
            ["trace", "{films}", "--data", "{folder}/test.conll", "--out", "{folder}/x.trace"],
            "as text, expected a string",
        ),
    ],
)
def test_the_wrong_kind_of_model_gets_one_line_that_names_what_to_do(
    command: list[str], message: str, tagging: Path, trained: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "lists.csv").write_text("query,text\ngood,a good film\ngood,bad plot\n")
    names = {
        "model": tagging / "ner",
        "films": trained / "films",
        "folder": tagging,
        "csv": tmp_path / "lists.csv",
    }
    refused = run(*(part.format(**names) for part in command))
    assert refused.exit_code == 1
    assert message in refused.stderr
    assert refused.stderr.count("offramp: ") == 1


def test_certify_refuses_taggers_of_any_kind(
    tagging: Path, tiny_tagger: Callable[..., Any], tmp_path: Path, run: Run
) -> None:
    plain, model = tmp_path / "plain", tagging / "ner" / "model"
    tiny_tagger("bert").save_pretrained(plain)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / file, plain)
    (tmp_path / "texts.txt").write_text("a good film\n" * 200)
    for side in (plain, tagging / "ner"):
        refused = run("certify", side, tagging / "ner", "--texts", tmp_path / "texts.txt")
        assert refused.exit_code == 2
        [message] = [line for line in refused.stderr.splitlines() if line.startswith("offramp: ")]
        assert f"{side} tags tokens" in message
        assert "`offramp retrofit` proves what a faster tagger changes" in message


def test_a_plain_tagger_is_sent_to_retrofit(
    tiny_tagger: Callable[..., Any], tmp_path: Path, run: Run
) -> None:
    tiny_tagger("bert").save_pretrained(tmp_path / "mine")
    refused = run("predict", tmp_path / "mine", stdin="a good film")
    assert refused.exit_code == 1
    assert (
        f"is a bert tagger without exits; add them with `offramp retrofit {tmp_path / 'mine'}"
        in refused.stderr
    )


def test_every_rule_and_recipe_is_listed_with_its_own_description(ask: Ask) -> None:
    for kind in ("rules", "recipes"):
        lines = ask("list", kind)[kind]
        assert len({line.partition(" Options:")[0] for line in lines.values()}) == len(lines)


def test_a_tagger_without_the_tag_o_says_what_follows_from_that(
    tagging: Path, tmp_path: Path, run: Run
) -> None:
    model = Path(shutil.copytree(tagging / "ner" / "model", tmp_path / "unnamed"))
    config = json.loads((model / "config.json").read_text())
    tags = {str(number): f"LABEL_{number}" for number in range(len(config["id2label"]))}
    names = {"id2label": tags, "label2id": {tag: int(number) for number, tag in tags.items()}}
    (model / "config.json").write_text(json.dumps(config | names))
    found = run("predict", model, "--policy", "never", "--json", stdin="a film")
    assert "LABEL_0" in found.stderr
    assert "is O, so every word is in a span; name the model's labels in config.json" in found.stderr
    assert {(span["start"], span["end"]) for span in json.loads(found.stdout)["spans"]} <= {
        (0, 1),
        (2, 6),
        (0, 6),
    }


def test_presidio_finds_the_spans_of_the_tagger_with_the_recognizer_of_the_docs(tagging: Path) -> None:
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry  # slow, and no other test needs it

    page = (Path(__file__).parents[2] / "docs" / "tagging.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "recognizer"}
    exec(page.partition("```python recognizer.py\n")[2].partition("```")[0], names)
    recognizer = names["OfframpRecognizer"](tagging / "ner", supported_language="en")
    assert recognizer.supported_entities == ["QUALITY", "THING"]
    registry = RecognizerRegistry(recognizers=[recognizer])
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=words_only(), supported_languages=["en"])
    text = "a good film"
    found = {(each.entity_type, each.start, each.end, each.score) for each in analyzer.analyze(text, "en")}
    spans = Tagger.from_pretrained(tagging / "ner").tag(text)
    assert spans
    assert found == {(span.label, span.start, span.end, span.score) for span in spans}
    assert [each.entity_type for each in analyzer.analyze(text, "en", ["THING"])] == ["THING"]


def words_only() -> Any:
    """The part of Presidio that divides texts into words, without the language model that it would download."""
    import spacy
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    engine = SpacyNlpEngine()
    engine.nlp = {"en": spacy.blank("en")}
    return engine
