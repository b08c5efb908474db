"""Exported taggers: the spans and exits of the model they come from, whatever else is in the batch."""

import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import AutoConfig, TokenClassificationPipeline

from offramp import ExitModel, Runner, Tagger
from offramp.engine import Engine
from offramp.errors import BadData
from offramp.folder.manifest import Manifest, SavedTokenizer
from offramp.inference.collect import collect
from offramp.model_info import ModelInfo
from offramp.models.backbones import BACKBONES
from offramp.numerics import entropy
from offramp.onnx_export import export
from offramp.onnx_export.one_file import one_file
from offramp.onnx_export.portable import encoder_config, include_graph, write_portable
from offramp.policy import Policy, fold
from offramp.problems import TOKENS
from offramp.reports.stored_policy import store_policy
from offramp.rules.agreement import Agreement
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import OnnxRuntime, embedding_inputs
from offramp.tags import token_kinds

TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
DRAW = np.random.default_rng(0)
TEXTS = [" ".join(DRAW.choice([*"abcdefghij", "good", "film"], length)) for length in range(30)]
PRECISIONS = ("fp32", "int8")


@pytest.fixture(scope="module")
def plain(tiny_tagger: Callable[..., Any]) -> Callable[[str], Any]:
    """A fine-tuned tagger of each family."""
    return cache(lambda family: tiny_tagger(family, layers=3, labels=TAGS))


@pytest.fixture(scope="module")
def models(plain: Callable[[str], Any]) -> Callable[[str], ExitModel]:
    """The same with exits that disagree."""

    @cache
    def of(family: str) -> ExitModel:
        model = ExitModel.from_encoder(plain(family), head={"gate": family == "bert"})
        torch.manual_seed(7)
        for head in model.heads.classifiers[:-1]:
            torch.nn.init.normal_(head.weight, std=0.5)
        return model.eval()

    return of


@pytest.fixture(scope="module")
def exported(
    models: Callable[[str], ExitModel], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """exported("bert", "int8") -> the folder of an exported tagger."""

    @cache
    def of(family: str, precision: str) -> Path:
        folder = tmp_path_factory.mktemp("taggers") / f"{family}-{precision}"
        return export(models(family), folder, precision, tokenizer, texts=TEXTS)

    return of


def random_tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(sum(lengths))
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def between(engine: Engine, texts: list[Tokens]) -> Policy:
    """A policy with which about half of the texts exit early."""
    tokens = engine.tokens_of(texts)
    assert tokens is not None
    values = np.unique(-tokens.least(-entropy(engine.trace(texts)[0]))[:, :-1])
    middle = len(values) // 2
    return Policy.parse(
        f"entropy:{values[middle - 1 : middle + 1].mean()}"
    )  # no text is at the threshold itself


def all_logits(runtime: Any, texts: list[Tokens]) -> np.ndarray:
    """(tokens, exits, tags), all texts as one batch."""
    batch, every_exit = runtime.embed(texts), []
    for exit in range(len(runtime.info.exits)):
        batch, logits, _ = runtime.run(exit, batch)
        every_exit.append(logits)
    return np.stack(every_exit, axis=1)


def truth(model: ExitModel, texts: list[Tokens]) -> np.ndarray:
    """(tokens, exits, tags) from the model's own forward, one text at a time."""
    with torch.inference_mode():
        outputs = [model(input_ids=torch.tensor([text.ids])).exit_logits[0] for text in texts]
    return np.concatenate([output.numpy() for output in outputs])


@pytest.mark.parametrize("family", BACKBONES)
def test_graphs_tag_every_token_as_the_model_does(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], family: str
) -> None:
    runtime = OnnxRuntime(exported(family, "fp32"), threads=1)
    for lengths in ([1], [2, 1], [7, 3, 11, 1, 5, 7], [runtime.max_length]):
        texts = random_tokens(lengths)
        np.testing.assert_allclose(all_logits(runtime, texts), truth(models(family), texts), atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", BACKBONES)
def test_neighbours_and_padding_change_no_bit_of_any_token_and_no_exit(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], family: str, precision: str
) -> None:
    runtime = OnnxRuntime(exported(family, precision), threads=1)
    draw = np.random.default_rng(0)
    texts = random_tokens(draw.integers(2, 30, 24).tolist())
    each = [all_logits(runtime, [text]) for text in texts]
    if precision == "int8":
        found, expected = np.concatenate(each), truth(models(family), texts)
        assert not np.array_equal(found, expected)
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.93  # random weights, other texts
    policy = between(Engine(runtime), texts)
    decided = [Engine(runtime).run([text], policy) for text in texts]
    assert len({int(each.exits[0]) for each in decided}) > 1
    for window, batch_tokens, overhead in itertools.product([5, 24], [60, 1000], [0, 1000]):
        order = draw.permutation(len(texts))
        runtime.overhead = overhead
        engine = Engine(runtime, window, batch_tokens)
        chosen = [texts[row] for row in order]
        np.testing.assert_array_equal(engine.trace(chosen)[0], np.concatenate([each[row] for row in order]))
        decision = engine.run(chosen, policy)
        np.testing.assert_array_equal(decision.exits, [decided[row].exits[0] for row in order])
        np.testing.assert_array_equal(decision.logits, np.concatenate([decided[row].logits for row in order]))


@cache
def in_one_file(folder: Path, policy: Policy) -> Callable[[Sequence[Tokens]], tuple[np.ndarray, np.ndarray]]:
    """The logits of every token and the layer of every text, from the graph that has everything."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        one_file(folder, policy).SerializeToString(), options, disabled_optimizers=["SkipLayerNormFusion"]
    )
    names = [each.name for each in session.get_inputs()]

    def run(texts: Sequence[Tokens]) -> tuple[np.ndarray, np.ndarray]:
        inputs = embedding_inputs(texts, padding=1)
        logits, layers = session.run(None, {name: inputs[name] for name in names})
        return logits[inputs["attention_mask"] > 0], layers

    return run


def kinds_of(folder: Path) -> np.ndarray:
    tokenizer = SavedTokenizer.load(folder, Manifest.load(folder).tokenizer)
    return token_kinds(tokenizer.backend_tokenizer, tokenizer.unk_token_id)


def random_texts(lengths: Iterable[int]) -> list[Tokens]:
    """Tokens of words between special ones."""
    draw = np.random.default_rng(3)
    return [Tokens([2, *draw.integers(4, 33, length - 2).tolist(), 3]) for length in lengths]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", BACKBONES)
def test_one_file_exits_as_the_engine_and_neighbours_change_no_bit(
    exported: Callable[[str, str], Path], family: str, precision: str
) -> None:
    folder = exported(family, precision)
    texts = random_texts([*range(2, 30, 2), 7, 7, 3, 29])
    engine = Engine(OnnxRuntime(folder, threads=1), word_starts=kinds_of(folder))
    policy = between(engine, texts)
    expected = engine.run(texts, policy)
    run = in_one_file(folder, policy)
    logits, layers = run(texts)
    np.testing.assert_array_equal(layers, expected.exits)  # an exit after every layer, and before the first
    assert len({*layers.tolist()}) > 1
    np.testing.assert_array_equal(logits, expected.logits)
    parts = np.split(logits, np.cumsum([len(text.ids) for text in texts])[:-1])
    for text, layer, part in zip(texts, layers, parts, strict=True):
        alone, its_layer = run([text])
        assert its_layer == layer
        np.testing.assert_array_equal(alone, part)


def test_the_tags_of_the_exits_on_the_way_are_there_for_those_who_ask(
    exported: Callable[[str, str], Path],
) -> None:
    folder, texts = exported("bert", "fp32"), random_texts([5, 9, 9, 14, 20, 27])
    engine = Engine(OnnxRuntime(folder, threads=1), word_starts=kinds_of(folder))
    policy = between(engine, texts)
    logits, layers = in_one_file(folder, policy)(texts)
    session = onnxruntime.InferenceSession(one_file(folder, policy, exit_logits=True).SerializeToString())
    inputs = embedding_inputs(texts, padding=1)
    names = [each.name for each in session.get_inputs()]
    (every,) = session.run(["exit_logits"], {name: inputs[name] for name in names})
    assert len({*layers.tolist()}) > 1
    parts = np.split(logits, np.cumsum([len(text.ids) for text in texts])[:-1])
    for row, (layer, part) in enumerate(zip(layers, parts, strict=True)):
        taken = every[row, layer, : len(part)]  # an exit after every layer, and before the first
        np.testing.assert_allclose(taken, part, rtol=1e-5, atol=1e-5)  # another order of optimizations
        assert np.isfinite(every[row, : layer + 1, : len(part)]).all()
        assert np.isnan(every[row, layer + 1 :]).all()


POLICIES = ["entropy:0.9", "confidence:0.5", "patience:1", "gate:0.45", "layer:2", "never"]


@pytest.mark.parametrize("policy", POLICIES)
def test_spans_and_layers_of_an_exported_tagger_are_those_of_the_model(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], tokenizer: Any, policy: str
) -> None:
    expected = Tagger(Runner(models("bert"), tokenizer)).tag([*TEXTS, "good film x " * 60], policy=policy)
    found = Tagger.from_pretrained(exported("bert", "fp32")).tag([*TEXTS, "good film x " * 60], policy=policy)
    for one, other in zip(expected, found, strict=True):
        assert one.layer == other.layer
        assert [(each.start, each.end, each.label) for each in one] == [
            (each.start, each.end, each.label) for each in other
        ]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)


def test_an_exported_tagger_that_never_exits_early_is_the_plain_model(
    plain: Callable[[str], Any], exported: Callable[[str, str], Path], tokenizer: Any
) -> None:
    pipeline = TokenClassificationPipeline(
        model=plain("bert"), tokenizer=tokenizer, aggregation_strategy="first"
    )
    found = Tagger.from_pretrained(exported("bert", "fp32")).tag(TEXTS, policy="never")
    assert [[(each.start, each.end, each.label) for each in spans] for spans in found] == [
        [(each["start"], each["end"], each["entity_group"]) for each in pipeline(text)] for text in TEXTS
    ]
    assert any(found)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gates_come_out_for_every_token(
    models: Callable[[str], ExitModel], exported: Callable[[str, str], Path], precision: str
) -> None:
    runtime, texts = OnnxRuntime(exported("bert", precision), threads=1), random_tokens([4, 6])
    batch = runtime.embed(texts)
    for exit in range(4):
        batch, _, gates = runtime.run(exit, batch)
        with torch.inference_mode():
            expected = [
                models("bert")(input_ids=torch.tensor([text.ids])).exit_gates[0, :, exit] for text in texts
            ]
        np.testing.assert_allclose(
            gates, torch.cat(expected).numpy(), atol=1e-5 if precision == "fp32" else 0.1
        )


@pytest.fixture(scope="module", params=PRECISIONS)
def folders(
    request: pytest.FixtureRequest,
    exported: Callable[[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """An exported folder that also has the graph with its policy, and the portable folder that this comes from."""
    home = tmp_path_factory.mktemp("portable")
    own = Path(shutil.copytree(exported("bert", request.param), home / "own"))
    texts = random_texts(range(2, 30))
    store_policy(own, between(Engine(OnnxRuntime(own, threads=1), word_starts=kinds_of(own)), texts))
    write_portable(own, home / "portable")
    include_graph(own, home / "portable")
    return own, home / "portable"


LONG = "good film x " * 60


@pytest.mark.parametrize(
    "policy", [None, "entropy:1.3", "entropy:1.2,max_layer=2", "never", "never,max_layer=1", "patience:1"]
)
def test_one_graph_and_stages_find_the_same_in_one_text_and_in_many(
    folders: tuple[Path, Path], policy: str | None
) -> None:
    stages, own, whole = (Tagger.from_pretrained(folder, threads=1) for folder in (folders[0], *folders))
    stages.runner.runtime.compiled = None
    texts = [*TEXTS, LONG]
    expected = stages.tag(texts, policy=policy)
    calls = count_calls(own.runner.runtime.compiled)
    for tagger in (own, whole):
        for found in (tagger.tag(texts, policy=policy), [tagger.tag(text, policy=policy) for text in texts]):
            assert found == expected
            assert [spans.layer for spans in found] == [spans.layer for spans in expected]
            assert all(spans.finite for spans in found)
    windows = len(TEXTS) + len(stages.tokenizer([LONG])[0].windows)
    assert sum(calls) == (0 if policy == "patience:1" else 2 * windows)
    if policy is None:
        assert len({spans.layer for spans in expected}) > 1


def test_the_rule_that_learns_decides_in_the_graph_as_between_stages(
    exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    own, portable = Path(shutil.copytree(exported("bert", "int8"), tmp_path / "own")), tmp_path / "portable"
    trace = collect(Tagger.from_pretrained(own).runner, {"text": TEXTS}, progress=False)
    rule = Agreement.fit(trace)
    folded = fold(rule, trace.logits, None, trace.layers, trace.problem, trace.lists)
    store_policy(own, Policy(rule, float(np.quantile(folded.readiness[:, :-1], 0.8))))
    write_portable(own, portable)
    expected, found = (Tagger.from_pretrained(folder, threads=1).tag(TEXTS) for folder in (own, portable))
    assert found == expected
    assert [spans.layer for spans in found] == [spans.layer for spans in expected]
    assert len({spans.layer for spans in expected}) > 1


def test_where_no_words_are_known_stages_decide(folders: tuple[Path, Path]) -> None:
    """An engine without a tokenizer takes all tokens for words, and the graph does not."""
    runtime, texts = OnnxRuntime(folders[0], threads=1), random_texts([4])
    calls = count_calls(runtime.compiled)
    Engine(runtime).run(texts, Policy.parse("entropy:1.4"))
    assert calls == []
    Engine(runtime, word_starts=kinds_of(folders[0])).run(texts, Policy.parse("entropy:1.4"))
    assert calls == [1]


def count_calls(compiled: Any) -> list[int]:
    """Filled with the number of texts of each call."""
    calls: list[int] = []
    decide = compiled.decide

    def counted(tokens: Any, policy: Policy) -> Any:
        calls.append(len(tokens))
        return decide(tokens, policy)

    compiled.decide = counted
    return calls


def test_a_portable_folder_is_that_of_a_plain_tagger(folders: tuple[Path, Path]) -> None:
    config = AutoConfig.from_pretrained(folders[1])
    assert config.architectures == ["BertForTokenClassification"]
    assert [config.id2label[row] for row in range(5)] == TAGS
    assert config.problem_type is None
    assert ModelInfo.read(folders[1]).problem is TOKENS
    card = (folders[1] / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in card
    assert "(rows, tokens, 5)" in card


@pytest.mark.parametrize("family", BACKBONES)
def test_every_family_has_the_name_of_a_plain_tagger(
    exported: Callable[[str, str], Path], family: str
) -> None:
    folder = exported(family, "fp32")
    info = replace(ModelInfo.read(folder), policy=Policy.parse("never"))
    [name] = encoder_config(info, Manifest.load(folder))["architectures"]
    assert name.endswith("ForTokenClassification")


def test_a_row_of_padding_is_an_empty_text_and_wrong_lengths_are_errors(
    exported: Callable[[str, str], Path],
) -> None:
    folder, policy = exported("bert", "fp32"), Policy.parse("patience:1")
    texts = [Tokens([1]), Tokens([2, 6, 7, 3])]  # 1 is padding, which stands for an empty text
    expected = Engine(OnnxRuntime(folder, threads=1), word_starts=kinds_of(folder)).run(texts, policy)
    session = onnxruntime.InferenceSession(one_file(folder, policy).SerializeToString())
    inputs = embedding_inputs(texts, padding=1)
    inputs["attention_mask"][0] = 0
    logits, layers = session.run(None, inputs)
    np.testing.assert_array_equal(layers, expected.exits)
    found = [*logits[0, :1], *logits[1]]
    np.testing.assert_allclose(found, expected.logits, rtol=1e-5, atol=1e-5)
    for length in (0, Manifest.load(folder).max_length + 1):
        with pytest.raises(Exception, match=r"Gather node. Name:'rows_have_from_1_to_\d+_tokens'"):
            session.run(None, dict.fromkeys(inputs, np.ones((2, length), np.int64)))


def test_scales_are_found_on_single_texts(
    models: Callable[[str], ExitModel], tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match="item 0 is a pair of texts"):
        export(models("bert"), tmp_path / "out", "int8", tokenizer, texts=[("a", "b")])
