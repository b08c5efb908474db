"""offramp rerank on a tiny cross-encoder, and its policy in `offramp info`."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import make_certificate

from offramp import Policy, Reranker, store_policy
from offramp.folder import load_model
from offramp.rules.rank import Rank

Run = Callable[..., Any]
Ask = Callable[..., Any]
RULE = Policy(Rank(2, False, (0.5, 0.6, 0.8, 0.9, 1), (0,) * 5, ((0, 3, -2),) * 4), 0.2)


@pytest.fixture(scope="module")
def workplace(
    make_model: Callable[..., Any], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A cross-encoder with the rule rank, and candidates of two queries in no order."""
    home = tmp_path_factory.mktemp("rerank")
    make_model(num_labels=1).save_pretrained(home / "mine")
    tokenizer.save_pretrained(home / "mine")
    store_policy(home / "mine", RULE)
    rows = [
        ("good film", "a bad film", 1),
        ("bad", "c", 2),
        ("good film", "b b", 3),
        ("good film", "good", 4),
    ]
    with (home / "candidates.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("query", "text", "score"), *rows])
    return home


def test_the_best_documents_of_each_query_come_first(ask: Ask, run: Run, workplace: Path) -> None:
    done = run("rerank", workplace / "mine", workplace / "candidates.csv", "--json")
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["query"], each["rank"]) for each in records] == [
        ("good film", 1),
        ("good film", 2),
        ("bad", 1),
    ]
    expected = Reranker.from_pretrained(workplace / "mine").rank("good film", ["a bad film", "b b", "good"])
    assert [each["layer"] for each in records[:2]] == [each.layer for each in expected]
    assert [each["score"] for each in records[:2]] == pytest.approx(
        [each.score for each in expected], abs=1e-4
    )
    assert [each["input_score"] for each in records[2:]] == ["2"]
    assert "2 queries with 4 documents, mean layer" in done.stderr


def test_people_get_a_line_for_each_document(run: Run, workplace: Path) -> None:
    lines = run("rerank", workplace / "mine", workplace / "candidates.csv", "--top-k", 1).stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("1\t")
    assert lines[1].endswith("\tbad\tc")


def test_a_table_is_written(ask: Ask, workplace: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.csv"
    ask("rerank", workplace / "mine", workplace / "candidates.csv", "--out", out, "--exact-top", "--top-k", 9)
    with out.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [*rows[0]] == ["rank", "score", "layer", "query", "text", "input_score"]
    assert len(rows) == 4
    assert {row["layer"] for row in rows} == {"4"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--query", "question"], "no column named 'question'"),
        (["--out", "best.xls"], "expected a file that ends in"),
    ],
)
def test_mistakes_are_one_line(run: Run, workplace: Path, flags: list[str], message: str) -> None:
    done = run("rerank", workplace / "mine", workplace / "candidates.csv", *flags)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("offramp: ") == 1


def test_a_model_without_exits_is_named_before_the_columns_of_the_file(
    run: Run, tiny_classifier: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    tiny_classifier("bert", labels=["no", "yes"]).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    (tmp_path / "pairs.csv").write_text("question,sentence\na,b\n")
    refused = run("rerank", tmp_path / "plain", tmp_path / "pairs.csv")
    assert refused.exit_code == 1
    assert "is a bert classifier without exits" in refused.stderr


def test_a_file_of_lines_has_no_queries(run: Run, workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good\n")
    assert "with the columns query and text" in run("rerank", workplace / "mine", tmp_path / "a.txt").stderr


def test_info_shows_the_rule_and_its_certificate_if_that_is_for_this_model(
    ask: Ask, run: Run, workplace: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(workplace / "mine", tmp_path / "mine"))
    summary = "With 95% confidence, at most 5% of the top 2 of full depth are missed on average"

    def store(fingerprint: str) -> None:
        proof = make_certificate(
            policy=str(RULE), risk="overlap", top_k=2, epsilon=0.05, fingerprint=fingerprint
        )
        store_policy(folder, replace(RULE, certificate=proof))

    store(load_model(folder)[0].fingerprint())
    assert ask("info", folder)["policy"] == "rank:0.2,top_k=2"
    assert summary in run("info", folder).stdout
    assert summary in (folder / "README.md").read_text()
    store("abc")
    refused = run("info", folder)
    assert "issued for fingerprint abc" in refused.stderr
    assert summary not in refused.stdout
    with pytest.warns(UserWarning, match="issued for fingerprint abc"):
        assert Reranker.from_pretrained(folder).runner.policy.certificate is None


def test_a_damaged_rule_is_named(run: Run, workplace: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(workplace / "mine", tmp_path / "mine"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"policy": config["policy"] | {"options": {"top_k": 0}}})
    )
    done = run("info", folder)
    assert done.exit_code == 1
    assert "rank needs a top_k of 1 or more" in done.stderr
