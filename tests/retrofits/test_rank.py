"""Retrofits of tiny cross-encoders, in the library and from the command line."""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offramp import Guarantee, Policy, Reranker
from offramp.cli import app
from offramp.errors import BadData, BadOption, Incompatible
from offramp.retrofits import retrofit
from offramp.retrofits.text_split import split_texts

WORDS = ["good", "bad", "film", *"abcdefgh"]
TARGET = Guarantee(0.3, risk="overlap", top_k=2)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    draw = random.Random(0)

    def text(longest: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))

    queries = [f"{text(2)} {' '.join(draw.sample(WORDS, 3))}" for _ in range(90)]
    return [(query, text(5)) for query in queries for _ in range(6)]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offramp.measuring.speed.REPEATS", 1)
        yield


@pytest.fixture(scope="module", params=[1, 2], ids=["one output", "two classes"])
def original(
    request: pytest.FixtureRequest,
    tiny_classifier: Callable[..., Any],
    tokenizer: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("original") / "mine"
    tiny_classifier("bert", num_labels=request.param).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore:the model has no label names")
def test_a_reranker_gets_exits_and_a_certificate_about_its_own_top_k(
    original: Path, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    done = retrofit(original, pairs, tmp_path / "out", TARGET, runtime="torch", data="pairs.csv")
    reranker = Reranker.from_pretrained(done.folder)
    proof = reranker.runner.policy.certificate
    assert proof is not None
    assert (proof.risk, proof.top_k, proof.reference, proof.data) == ("overlap", 2, "mine", "pairs.csv")
    assert proof.observed_risk <= 0.3
    assert len(reranker.rank("good film", ["a", "b", "c", "d"])) == 2
    assert reranker.runner.runtime.model.heads.poolings == [*["pair"] * 4, "first"]
    assert done.results.comparison[1].losses["overlap"] == 0, "full depth is the original"
    assert "than mine in transformers for one query and" in str(done)
    card = (done.folder / "README.md").read_text()
    assert "\n# out\n" in card
    assert 'reranker.rank("a query"' in card
    again = retrofit(original, pairs, tmp_path / "out", TARGET, runtime="torch", data="pairs.csv")
    assert again == done


def test_pairs_of_a_query_stay_together(pairs: list[tuple[str, str]]) -> None:
    split = split_texts(pairs, by_query=True)
    parts = [{text[0] for text in part.texts} for part in vars(split).values()]
    assert sum(map(len, parts)) == len({query for query, _ in pairs}) == len(set.union(*parts))
    assert [len(part) for part in parts[1:]] == [9, 36, 4]
    assert [*split.sizes().values()] == [41, 9, 36, 4]
    assert sum(map(len, vars(split).values())) == len(pairs)


def test_too_few_queries_are_refused_before_any_work(
    original: Path, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=r"not enough queries \(90\)"):
        retrofit(original, pairs, tmp_path / "out", replace(TARGET, epsilon=0.01))
    with pytest.raises(BadData, match="single text"):
        retrofit(original, ["a", "b"], tmp_path / "out", TARGET)
    with pytest.raises(BadOption, match="seed=-1"):
        retrofit(original, pairs, tmp_path / "out", TARGET, seed=-1)
    with pytest.raises(BadOption, match="takes no groups, labels or learn_from"):
        retrofit(original, pairs, tmp_path / "out", TARGET, groups=[1] * len(pairs))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ladder", [[1.5], [0.2], [0.5, 0.4]])
def test_a_ladder_that_does_not_rise_from_the_guarantee_is_refused_before_any_work(
    ladder: list[float], original: Path, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    with pytest.raises(BadOption):
        retrofit(original, pairs, tmp_path / "out", TARGET, ladder=ladder)
    assert not (tmp_path / "out").exists()


def test_a_classifier_of_three_labels_is_refused(
    tiny_classifier: Callable[..., Any], tokenizer: Any, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    tiny_classifier("bert", num_labels=3).save_pretrained(tmp_path / "three")
    tokenizer.save_pretrained(tmp_path / "three")
    with pytest.raises(Incompatible, match="3 labels"):
        retrofit(tmp_path / "three", pairs, tmp_path / "out", TARGET)


def test_the_command_line_takes_a_table_of_pairs(
    original: Path, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "pairs.csv"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("question", "sentence"), *pairs])

    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(app, [str(each) for each in arguments])

    columns = ["--query", "question", "--text", "sentence"]
    flags = [
        "--rank",
        "--top-k",
        2,
        "--guarantee",
        0.3,
        "--ladder",
        0.5,
        "--risk",
        "ndcg",
        "--runtime",
        "torch",
        *columns,
    ]
    command = ["retrofit", original, "--texts", file, "--out", tmp_path / "fast", *flags]
    refused = run(*command, "--tolerance", 0.1)
    assert "--tolerance is not used with --rank" in refused.stderr
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "nDCG@2 against mine's order drops by at most 30%" in done.stdout
    assert f"offramp rerank {tmp_path / 'fast'} new.csv" in done.stdout
    rungs = [Policy.from_json(json.loads((tmp_path / "fast" / "rung-1.json").read_text()))]
    assert [rule.certificate and rule.certificate.epsilon for rule in rungs] == [0.5]
    ranked = run("rerank", tmp_path / "fast", file, *columns, "--json")
    assert json.loads(ranked.stdout.splitlines()[0])["rank"] == 1
