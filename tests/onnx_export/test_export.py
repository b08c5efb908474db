"""Exported graphs against the model they come from, and exports that fail."""

import ast
import gc
import itertools
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from fakes import make_certificate
from google.protobuf.message import EncodeError
from transformers import AutoConfig, AutoModelForSequenceClassification

from offramp.engine import Engine
from offramp.errors import CannotLoad, CertificateMismatch, Incompatible, OutputExists
from offramp.folder.manifest import GRAPH, Manifest
from offramp.model_info import ModelInfo
from offramp.models.backbones import BACKBONES
from offramp.models.exit_model import ExitModel
from offramp.numerics import softmax
from offramp.onnx_export import export, exporter
from offramp.onnx_export.one_file import check_size, one_file
from offramp.onnx_export.portable import encoder_config, include_graph, write_portable
from offramp.onnx_export.stages import leave_out_exits
from offramp.policy import Policy
from offramp.reports.stored_policy import store_policy
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import OneGraph, OnnxRuntime, PortableRuntime, embedding_inputs

make_graphs = exporter.graphs
SAMPLE = [" ".join(np.random.default_rng(length).choice([*"abcdefghij"], length)) for length in range(1, 30)]


@pytest.fixture(scope="module")
def models(tiny_encoder: Callable[..., Any]) -> Callable[[str], ExitModel]:
    """A model of four stages for each backbone."""

    @cache
    def of(backbone: str) -> ExitModel:
        torch.manual_seed(0)
        model = ExitModel.from_encoder(
            tiny_encoder(backbone, layers=3), num_labels=3, head={"gate": backbone == "bert"}
        )
        for head in model.heads.classifiers:
            torch.nn.init.normal_(head.weight, std=0.5)
        return model

    return of


@pytest.fixture(scope="module")
def graphs(models: Callable[[str], ExitModel]) -> Callable[[str], list[onnx.ModelProto]]:
    """The graphs of such a model, made once for all tests."""
    return cache(lambda backbone: [*make_graphs(exporter.plain_copy(models(backbone)))])


@pytest.fixture(scope="module")
def export_again(
    models: Callable[[str], ExitModel], graphs: Callable[[str], list[onnx.ModelProto]], tokenizer: Any
) -> Callable[..., Path]:
    """export_again(folder, "bert", "int8") -> the folder of an exported model, from graphs made before."""

    def again(folder: Path, backbone: str, precision: str = "fp32") -> Path:
        def made_before(model: ExitModel) -> Iterator[onnx.ModelProto]:
            for graph in graphs(backbone):
                copied = onnx.ModelProto()
                copied.CopyFrom(graph)
                yield copied

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporter, "graphs", made_before)
            return export(models(backbone), folder, precision, tokenizer, texts=SAMPLE)

    return again


@pytest.fixture(scope="module")
def exports(
    export_again: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """The same, once for all tests."""
    return cache(lambda *names: export_again(tmp_path_factory.mktemp("exports") / "model", *names))


@pytest.fixture
def exported(exports: Callable[[str, str], Path], tmp_path: Path) -> Callable[..., Path]:
    """exported("bert", "int8") -> the folder of an exported model, which the test may change."""

    def copied(backbone: str, precision: str = "fp32") -> Path:
        return Path(shutil.copytree(exports(backbone, precision), tmp_path / f"{backbone}-{precision}"))

    return copied


def tokens(lengths: list[int]) -> list[Tokens]:
    draw = np.random.default_rng(sum(lengths))
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in lengths]


def all_logits(runtime: Any, texts: list[Tokens]) -> np.ndarray:
    """(texts, exits, labels), all texts as one batch."""
    batch, every_exit = runtime.embed(texts), []
    for exit in range(len(runtime.info.exits)):
        batch, logits, _ = runtime.run(exit, batch)
        every_exit.append(logits)
    return np.stack(every_exit, axis=1)


def truth(model: ExitModel, texts: list[Tokens]) -> np.ndarray:
    """(texts, exits, labels) from the model's own forward, one text at a time."""
    with torch.inference_mode():
        outputs = [model(input_ids=torch.tensor([text.ids])).exit_logits for text in texts]
    return np.concatenate([output.numpy() for output in outputs])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_graphs_agree_with_the_model_for_any_batch_and_length(
    models: Callable[[str], ExitModel],
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    convert: Any,
    backbone: str,
) -> None:
    """The graphs are converted here, and not copies of those of another test."""
    monkeypatch.setattr(make_graphs.__module__ + ".to_onnx", convert)
    runtime = OnnxRuntime(export(models(backbone), tmp_path / "out", tokenizer=tokenizer), threads=1)
    for lengths in ([1], [2, 1], [7, 3, 11, 1, 5, 7], [runtime.max_length]):
        texts = tokens(lengths)
        np.testing.assert_allclose(all_logits(runtime, texts), truth(models(backbone), texts), atol=1e-4)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_int8_logits_are_close(
    models: Callable[[str], ExitModel], exported: Callable[..., Path], backbone: str
) -> None:
    texts = tokens([9, 4, 12, 1, 6, 6, 8, 3])
    found, expected = (
        all_logits(OnnxRuntime(exported(backbone, "int8"), threads=1), texts),
        truth(models(backbone), texts),
    )
    assert not np.array_equal(found, expected)
    assert (
        np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.97
    )  # random weights, scales from other texts


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_neighbours_and_padding_change_no_bit_of_logits_and_no_exit(
    exported: Callable[..., Path], backbone: str, precision: str
) -> None:
    runtime = OnnxRuntime(exported(backbone, precision), threads=1)
    draw = np.random.default_rng(0)
    # from two tokens, because tokenizers add special ones; a convolution of one is computed in another order
    texts = tokens(draw.integers(2, 30, 24).tolist())
    alone = np.concatenate([all_logits(runtime, [text]) for text in texts])
    policy = Policy.parse(f"confidence:{np.median(softmax(alone).max(-1))}")
    exits = policy.exits(alone, layers=runtime.info.exits)
    assert len({*exits.tolist()}) > 1
    for window, batch_tokens, overhead in itertools.product([5, 24], [60, 1000], [0, 1000]):
        order = draw.permutation(len(texts))
        runtime.overhead = overhead
        engine = Engine(runtime, window, batch_tokens)
        chosen = [texts[row] for row in order]
        np.testing.assert_array_equal(engine.trace(chosen)[0], alone[order])
        decision = engine.run(chosen, policy)
        np.testing.assert_array_equal(decision.exits, exits[order])
        np.testing.assert_array_equal(decision.logits, alone[order, exits[order]])


def test_gates_come_out_with_the_logits(
    models: Callable[[str], ExitModel], exported: Callable[..., Path]
) -> None:
    runtime, texts = OnnxRuntime(exported("bert"), threads=1), tokens([4, 6])
    _, _, gates = runtime.run(2, runtime.embed(texts))
    with torch.inference_mode():
        expected = [models("bert")(input_ids=torch.tensor([text.ids])).exit_gates[0, 2] for text in texts]
    np.testing.assert_allclose(gates, torch.stack(expected).numpy(), atol=1e-5)


def branches(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The graphs of the stages, in order."""
    below = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    by_name = {branch.name: branch for branch in below}  # then and else come in any order
    parts = sorted(by_name.values(), key=lambda branch: int(branch.name.split("_")[0]))
    return [leaf for part in parts for leaf in branches(part)] or [graph]


def external_places(graph: onnx.GraphProto) -> set[tuple[str, ...]]:
    """The places in the weights file that a graph reads."""
    return {tuple(entry.value for entry in tensor.external_data) for tensor in graph.initializer} - {()}


def test_weights_that_layers_share_are_stored_once(exported: Callable[..., Path]) -> None:
    folder = exported("albert")  # three layers in two groups: the first two are the same
    graph = onnx.load(folder / "stages.onnx", load_external_data=False).graph
    _, first, second, third = map(external_places, branches(graph))
    assert first == second
    assert len(first & third) == 1  # the pooler, which starts as the pretrained one at every exit


def test_stages_that_are_the_same_share_a_branch(
    tiny_encoder: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    """ELBERT shares the weights of layers and of heads."""
    model = ExitModel.from_encoder(
        tiny_encoder("albert", num_hidden_groups=1),
        num_labels=2,
        head={"pooler": "shared", "classifier": "shared"},
    )
    runtime = OnnxRuntime(export(model, tmp_path / "out", tokenizer=tokenizer), threads=1)
    assert runtime.manifest.branches == (
        0,
        *[1] * (len(runtime.info.exits) - 1),
    )  # before the first layer, after any
    np.testing.assert_allclose(all_logits(runtime, tokens([5, 3])), truth(model, tokens([5, 3])), atol=1e-4)


def test_a_stage_of_several_layers_is_one_branch(
    tiny_encoder: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=4), num_labels=2, exits=2)
    runtime = OnnxRuntime(export(model, tmp_path / "out", tokenizer=tokenizer), threads=1)
    assert runtime.info.exits == (0, 2, 4)
    assert runtime.manifest.branches == (0, 1, 2)
    np.testing.assert_allclose(all_logits(runtime, tokens([5, 3])), truth(model, tokens([5, 3])), atol=1e-4)


@pytest.mark.parametrize(
    ("backbone", "precision"),
    [("bert", "fp32"), ("bert", "int8"), ("albert", "fp32"), ("modernbert", "int8")],
)
@pytest.mark.parametrize("kept", [(0, 3), (1, 2, 3), (3,)])
def test_leaving_out_exits_changes_no_bit_of_the_others(
    exported: Callable[..., Path], tmp_path: Path, backbone: str, precision: str, kept: tuple[int, ...]
) -> None:
    folder = exported(backbone, precision)
    leave_out_exits(folder, tmp_path / "fewer", kept)
    before, after = OnnxRuntime(folder), OnnxRuntime(tmp_path / "fewer")
    texts = tokens([5, 1, 9])
    assert after.info.exits == tuple(before.info.exits[exit] for exit in kept)
    np.testing.assert_array_equal(all_logits(after, texts), all_logits(before, texts)[:, kept])
    assert after.fingerprint() != before.fingerprint()


def test_the_model_is_not_changed(tiny_encoder: Callable[..., Any], tokenizer: Any, tmp_path: Path) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=1), num_labels=2).to(torch.bfloat16).train()
    before = model.fingerprint(), model.dtype, model.backbone.config._attn_implementation
    runtime = OnnxRuntime(export(model, tmp_path / "out", tokenizer=tokenizer), threads=1)
    assert (model.fingerprint(), model.dtype, model.backbone.config._attn_implementation) == before
    assert model.training
    assert runtime.manifest.fingerprint == before[0]


def test_graphs_contain_no_paths_of_the_machine(exported: Callable[..., Path]) -> None:
    for file in exported("bert").glob("*.onnx"):
        assert b"site-packages" not in file.read_bytes()
        assert str(Path.cwd()).encode() not in file.read_bytes()


def test_a_failed_export_leaves_no_files(
    export_again: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "check_graphs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_again(tmp_path / "out", "bert")
    assert not [*tmp_path.iterdir()]


def test_graphs_that_differ_from_the_model_are_refused(
    models: Callable[[str], ExitModel],
    graphs: Callable[[str], list[onnx.ModelProto]],
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedding, zeroth, first, second, third = (
        onnx.ModelProto.FromString(g.SerializeToString()) for g in graphs("bert")
    )
    monkeypatch.setattr(exporter, "graphs", lambda model: iter([embedding, zeroth, first, third, second]))
    with pytest.raises(Incompatible, match="differ from the model's at layer 2"):
        export(models("bert"), tmp_path / "out", tokenizer=tokenizer)
    assert not [*tmp_path.iterdir()]


def test_a_failure_of_torch_is_reported_with_its_reason(
    models: Callable[[str], ExitModel],
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    convert: Any,
) -> None:
    def fail(*given: Any, **options: Any) -> None:
        assert not gc.isenabled()
        raise RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(torch.onnx, "export", fail)
    monkeypatch.setattr(make_graphs.__module__ + ".to_onnx", convert)
    with pytest.raises(Incompatible, match=r"this model: no such operator$"):
        export(models("bert"), tmp_path / "out", tokenizer=tokenizer)
    assert gc.isenabled()


def test_code_parsed_during_garbage_collection_does_not_break_the_export(
    models: Callable[[str], ExitModel], monkeypatch: pytest.MonkeyPatch, convert: Any
) -> None:
    """As another thread may do: see `exporter_context`."""
    monkeypatch.setattr(make_graphs.__module__ + ".to_onnx", convert)

    def parse(phase: str, info: dict[str, int]) -> None:
        ast.parse("0")

    gc.callbacks.append(parse)
    try:
        assert next(make_graphs(exporter.plain_copy(models("bert")))).graph.node
    finally:
        gc.callbacks.remove(parse)
    assert gc.isenabled()


def test_a_model_with_nan_weights_is_refused(
    make_model: Callable[..., ExitModel], tokenizer: Any, tmp_path: Path
) -> None:
    model = make_model()
    with torch.no_grad():
        model.backbone.embeddings.position_embeddings.weight[-1, 0] = float("nan")
    with pytest.raises(Incompatible, match="NaN"):
        export(model, tmp_path / "out", tokenizer=tokenizer)
    assert not [*tmp_path.iterdir()]


def test_bad_arguments_are_refused(
    models: Callable[[str], ExitModel], tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(Incompatible, match="fp32, int8"):
        export(models("bert"), tmp_path / "out", "int4", tokenizer)
    with pytest.raises(Incompatible, match="pass the model's tokenizer"):
        export(models("bert"), tmp_path / "out")
    with pytest.raises(CannotLoad, match="nowhere"):
        export(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(("precision", "warned"), [("fp32", False), ("int8", True)])
def test_a_certificate_for_another_precision_warns_and_is_left_out(
    models: Callable[[str], ExitModel],
    export_again: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    warned: bool,
) -> None:
    certificate = make_certificate(fingerprint=models("bert").fingerprint())
    policy = replace(Policy.parse("entropy:0.3"), certificate=certificate)
    monkeypatch.setattr(models("bert").config, "policy", policy.to_json())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = export_again(tmp_path / "out", "bert", precision)
    assert any(issubclass(each.category, CertificateMismatch) for each in caught) == warned
    stored = OnnxRuntime(folder, threads=1).info.policy
    assert stored is not None
    assert (stored.certificate is None) == warned
    assert replace(stored, certificate=None) == replace(policy, certificate=None)


def test_a_folder_with_files_is_not_overwritten(export_again: Callable[..., Path], tmp_path: Path) -> None:
    precious = tmp_path / "out" / "notes.txt"
    precious.parent.mkdir()
    precious.write_text("keep me")
    with pytest.raises(OutputExists, match="already exists"):
        export_again(precious.parent, "bert")
    assert precious.read_text() == "keep me"
    assert [*precious.parent.iterdir()] == [precious]


def in_one_file(
    folder: Path, policy: Policy, exit_logits: bool = False
) -> Callable[[dict[str, np.ndarray]], Any]:
    """Logits and layers from the graph that has everything."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        one_file(folder, policy, exit_logits).SerializeToString(),
        options,
        disabled_optimizers=["SkipLayerNormFusion"],
    )
    names = {each.name for each in session.get_inputs()}
    return lambda inputs: session.run(None, {name: inputs[name] for name in names})


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_one_file_exits_as_the_engine_and_neighbours_change_no_bit(
    exported: Callable[..., Path], backbone: str, precision: str
) -> None:
    folder = exported(backbone, precision)
    policy = Policy.parse("patience:1")
    texts = tokens([*range(2, 30, 2), 7, 7, 3, 29])  # from two tokens, as above
    expected = Engine(OnnxRuntime(folder, threads=1)).run(texts, policy)
    run = in_one_file(folder, policy)
    logits, layers = run(embedding_inputs(texts, padding=1))
    np.testing.assert_array_equal(layers, expected.exits)  # an exit after every layer, and before the first
    assert len({*layers.tolist()}) > 1
    np.testing.assert_array_equal(logits, expected.logits)
    for row, text in enumerate(texts):
        alone, layer = run(embedding_inputs([text], padding=1))
        assert layer == layers[row]
        np.testing.assert_array_equal(alone[0], logits[row])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("kind", "outputs", "policies"),
    [
        ("multi_label_classification", 3, ["confidence:0.6", "patience:1"]),
        ("regression", 1, ["patience:1,tolerance=0.3", "layer:1"]),
    ],
)
def test_one_file_decides_about_several_labels_and_about_numbers(
    tiny_encoder: Callable[..., Any],
    tokenizer: Any,
    tmp_path: Path,
    kind: str,
    outputs: int,
    policies: list[str],
    precision: str,
) -> None:
    torch.manual_seed(0)
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=2), num_labels=outputs, problem_type=kind)
    for head in model.heads.classifiers:
        torch.nn.init.normal_(head.weight, std=0.5)
    folder = export(model, tmp_path / "exported", precision, tokenizer, texts=SAMPLE)
    texts = tokens([*range(2, 30, 2), 7, 3])
    for policy in map(Policy.parse, policies):
        expected = Engine(OnnxRuntime(folder, threads=1)).run(texts, policy)
        logits, layers = in_one_file(folder, policy)(embedding_inputs(texts, padding=1))
        np.testing.assert_array_equal(layers, expected.exits)
        np.testing.assert_array_equal(logits, expected.logits)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("policy", ["patience:1", "ensemble:0.6"])
def test_the_logits_of_the_exits_on_the_way_are_there_for_those_who_ask(
    exported: Callable[..., Path], policy: str, precision: str
) -> None:
    folder = exported("bert", precision)
    texts, given = tokens([*range(2, 30, 2), 7, 7]), Policy.parse(policy)
    inputs = embedding_inputs(texts, padding=1)
    logits, layers = in_one_file(folder, given)(inputs)
    again, layers_again, every = in_one_file(folder, given, exit_logits=True)(inputs)
    np.testing.assert_array_equal(again, logits)
    np.testing.assert_array_equal(layers_again, layers)
    assert len({*layers.tolist()}) > 1
    traced, _ = Engine(OnnxRuntime(folder, threads=1)).trace(texts)
    taken = np.arange(traced.shape[1]) <= layers[:, None]  # an exit after every layer, and before the first
    np.testing.assert_array_equal(every[taken], traced[taken])
    assert np.isnan(every[~taken]).all()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_in_one_file_a_row_of_padding_is_an_empty_text_and_wrong_lengths_are_errors(
    exported: Callable[..., Path], backbone: str
) -> None:
    folder, policy = exported(backbone), Policy.parse("patience:1")
    texts = [Tokens([1]), Tokens([5, 6, 7, 8])]  # 1 is padding, which stands for an empty text
    expected = Engine(OnnxRuntime(folder, threads=1)).run(texts, policy)
    run = in_one_file(folder, policy)
    inputs = embedding_inputs(texts, padding=1)
    inputs["attention_mask"][0] = 0
    logits, layers = run(inputs)
    np.testing.assert_array_equal(layers, expected.exits)
    np.testing.assert_allclose(logits, expected.logits, rtol=1e-5, atol=1e-5)
    for length in (0, Manifest.load(folder).max_length + 1):
        names = ("input_ids", "attention_mask", "token_type_ids")
        with pytest.raises(Exception, match=r"Gather node. Name:'rows_have_from_1_to_\d+_tokens'"):
            run(dict.fromkeys(names, np.ones((2, length), np.int64)))


def test_a_model_too_large_for_one_file_names_the_next_step(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error() -> int:
        raise EncodeError("Failed to serialize proto")  # what protobuf does from 2 GB on

    with pytest.raises(Incompatible, match="which one file cannot have; try int8"):
        check_size(SimpleNamespace(ByteSize=raise_error))  # type: ignore[arg-type]
    monkeypatch.setattr("offramp.onnx_export.one_file.LARGEST", 10_000)
    with pytest.raises(Incompatible, match=r"more than 10,000 bytes.*try int8"):
        one_file(exported("bert"), Policy.parse("never"))


def test_an_infinite_threshold_which_other_languages_cannot_read_is_refused(
    exported: Callable[..., Path],
) -> None:
    folder = exported("bert")
    with pytest.raises(Incompatible, match=r"confidence:0.9/inf/0.7/0.5 has an infinite.*such as 1e300"):
        one_file(folder, Policy.parse("confidence:0.9/inf/0.7/0.5"))
    model = one_file(folder, Policy.parse("confidence:0.9/1e300/0.7/0.5"))
    (about,) = (json.loads(each.value) for each in model.metadata_props)
    assert about["policy"]["threshold"] == [0.9, 1e300, 0.7, 0.5]


@pytest.fixture
def portable(exported: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """An exported folder that also has the graph with its policy, and the portable folder that this comes from."""
    folder, path = exported("bert"), tmp_path / "portable"
    store_policy(folder, "confidence:0.5")
    write_portable(folder, path)
    include_graph(folder, path)
    return folder, path


@pytest.mark.parametrize(
    "policy",
    [
        "confidence:0.5",
        "confidence:0.6",
        "confidence:0.6,max_layer=2",
        "never",
        "never,max_layer=1",
        "patience:1",
    ],
)
def test_one_graph_and_stages_decide_the_same_for_one_text_and_for_many(
    portable: tuple[Path, Path], policy: str
) -> None:
    stages, whole = OnnxRuntime(portable[0], threads=1), PortableRuntime(portable[1], threads=1)
    texts, wanted = tokens([*range(2, 30, 2), 7, 3]), Policy.parse(policy)
    assert stages.compiled is not None
    expected = wanted.decide(all_logits(stages, texts), layers=stages.info.exits)
    calls = count_calls(stages.compiled)
    for runtime, rows in itertools.product((stages, whole), ([0], [3, 1], range(len(texts)))):
        decision = Engine(runtime).run([texts[row] for row in rows], wanted)
        np.testing.assert_array_equal(decision.exits, expected.exits[rows])
        np.testing.assert_array_equal(decision.logits, expected.logits[rows])
        assert decision.finite.all()
    assert sum(calls) == (0 if policy == "patience:1" else 1 + 2 + len(texts))
    np.testing.assert_array_equal(Engine(whole).trace(texts)[0], Engine(stages).trace(texts)[0])


def test_a_graph_that_returns_other_logits_than_the_exits_runs_its_own_policy_only(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    folder, texts, own = exported("bert"), tokens([5, 9, 14]), Policy.parse("ensemble:0.6")
    store_policy(folder, own)
    write_portable(folder, tmp_path / "portable")
    stages, whole = OnnxRuntime(folder, threads=1), PortableRuntime(tmp_path / "portable", threads=1)
    found, expected = (Engine(runtime).run(texts, own) for runtime in (whole, stages))
    np.testing.assert_array_equal(found.exits, expected.exits)
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-6)
    with pytest.raises(Incompatible, match=r"runs no other; use the exported folder"):
        Engine(whole).run(texts, Policy.parse("never"))


def count_calls(compiled: OneGraph) -> list[int]:
    """Filled with the number of texts of each call."""
    calls: list[int] = []
    decide = compiled.decide

    def counted(tokens: Any, policy: Policy) -> Any:
        calls.append(len(tokens))
        return decide(tokens, policy)

    compiled.decide = counted  # type: ignore[method-assign]
    return calls


def test_a_deadline_is_for_stages(portable: tuple[Path, Path]) -> None:
    runtime, texts = OnnxRuntime(portable[0], threads=1), tokens([5])
    assert runtime.compiled is not None
    calls = count_calls(runtime.compiled)
    late = Engine(runtime).run(texts, Policy.parse("confidence:2"), deadline=0.0)
    assert (late.exits.tolist(), calls) == ([0], [])


def test_the_graph_of_another_model_is_refused(
    portable: tuple[Path, Path], exported: Callable[..., Path]
) -> None:
    other = exported("distilbert")
    shutil.copytree(portable[0] / "onnx", other / "onnx")
    with pytest.raises(CannotLoad, match="not one of the files that were exported"):
        OnnxRuntime(other)
    Manifest(**json.loads((other / "stages.json").read_text())).add(other, GRAPH)
    with pytest.raises(CannotLoad, match="of another model"):
        OnnxRuntime(other)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_config_of_a_portable_folder_makes_a_plain_classifier(
    exported: Callable[..., Path], backbone: str
) -> None:
    folder = exported(backbone)
    info = replace(ModelInfo.read(folder), policy=Policy.parse("never"))
    config = encoder_config(info, Manifest.load(folder))
    json.dumps(config, allow_nan=False)  # JSON of other languages has no infinity
    plain = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**config))
    assert config["architectures"] == [type(plain).__name__]
    assert [*plain.config.id2label.values()] == [*ModelInfo.read(folder).labels]
