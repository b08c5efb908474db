"""A damaged model folder is refused with an OfframpError, or predicts as before; never anything else."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import pytest
import torch
from fakes import make_certificate
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from offramp import Policy, store_policy
from offramp.cli.info import info as describe
from offramp.errors import BadConfig, CannotLoad, CertificateMismatch, OfframpError
from offramp.folder import load_model
from offramp.folder.manifest import GRAPH, Manifest, digest
from offramp.inference import Classifier
from offramp.model_info import ModelInfo
from offramp.models.exit_model import ExitModel
from offramp.onnx_export import export
from offramp.onnx_export.portable import include_graph, write_portable
from offramp.runtimes.onnx import OnnxRuntime

TEXTS = ["good film", "bad bad bad", "a b c d e f g", "z"]
NESTED: Any = "deep"  # replaced by JSON that is nested too deeply to read
VALUES = [None, True, -1, 7, 0.5, "", "x", "../config.json", [], ["x"], [1, 2, 99], {}, {"x": 1}, NESTED]


@contextmanager
def copy_of(folder: Path) -> Iterator[Path]:
    with TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place) / "model"))


def predictions(folder: Path) -> list[tuple[Any, int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Classifier.from_pretrained(folder, threads=1).predict(TEXTS)
    return [(each.label, each.layer) for each in found]


def outcome(folder: Path) -> list[tuple[Any, int]] | None:
    """The predictions of a folder, None if it is refused; any other error fails the test."""
    try:
        return predictions(folder)
    except OfframpError:
        return None


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*path, key)
        yield from places(inside, (*path, key))


def edit(file: Path, path: tuple[Any, ...], how: str, value: Any) -> None:
    record = json.loads(file.read_text(encoding="utf-8"))
    around = record
    for key in path[:-1]:
        around = around[key]
    if how == "replace":
        around[path[-1]] = value
    else:
        old = around.pop(path[-1])
        if how == "rename" and isinstance(around, dict):
            around[f"{path[-1]}s"] = old
    text = json.dumps(record)
    file.write_text(text.replace('"deep"', "[" * 100_000) if value == NESTED else text, encoding="utf-8")


def is_setting(file: str, path: tuple[Any, ...]) -> bool:
    """Whether another valid value would make another valid model, which nothing could recognize."""
    return file.startswith(("tokenizer", "special")) or (
        file == "config.json" and path[0] == "encoder_config"
    )


@settings(max_examples=60)
@given(data=st.data())
def test_edited_json_is_refused_or_changes_no_prediction(any_runtime: Path, data: st.DataObject) -> None:
    names = sorted(path.name for path in any_runtime.glob("*.json"))
    name = data.draw(st.sampled_from(names), label="file")
    paths = [*places(json.loads((any_runtime / name).read_text(encoding="utf-8")))]
    path = data.draw(st.sampled_from(paths), label="path")
    how = data.draw(st.sampled_from(["replace", "delete", "rename"]), label="how")
    value = data.draw(st.sampled_from(VALUES), label="value")
    with copy_of(any_runtime) as folder:
        edit(folder / name, path, how, value)
        found = outcome(folder)
        if "stages.json" not in names and is_setting(name, path):
            return
        if path[0] == "policy" and how == "replace":
            return  # another policy
        assert found is None or found == predictions(any_runtime)


@settings(max_examples=40)
@given(data=st.data())
def test_a_signed_folder_with_contradictory_json_raises_nothing_raw(
    exported: Path, data: st.DataObject
) -> None:
    """An export whose digests are right, as its author wrote it."""
    name = data.draw(st.sampled_from(["config.json", "stages.json"]), label="file")
    path = data.draw(st.sampled_from([*places(json.loads((exported / name).read_text()))]), label="path")
    value = data.draw(st.sampled_from(VALUES), label="value")
    with copy_of(exported) as folder:
        edit(folder / name, path, "replace", value)
        try:
            sign(folder)
        except (OfframpError, TypeError, RecursionError):
            return  # not a manifest
        outcome(folder)


def sign(folder: Path) -> None:
    Manifest(**json.loads((folder / "stages.json").read_text(encoding="utf-8"))).save(folder)


@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_changes_no_prediction(any_runtime: Path, data: st.DataObject) -> None:
    names = sorted(path.name for path in any_runtime.iterdir() if path.suffix != ".md")
    name, other = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
    how = data.draw(st.sampled_from(["delete", "truncate", "empty", "grow", "swap", "folder"]), label="how")
    with copy_of(any_runtime) as folder:
        content = (folder / name).read_bytes()
        if how == "swap":
            (folder / name).write_bytes((folder / other).read_bytes())
            (folder / other).write_bytes(content)
        elif how in ("delete", "folder"):
            (folder / name).unlink()
            if how == "folder":
                (folder / name).mkdir()
        else:
            share = data.draw(st.floats(0, 0.999), label="share")
            damaged = {"truncate": content[: int(share * len(content))], "empty": b"", "grow": content * 2}
            (folder / name).write_bytes(damaged[how])
        found = outcome(folder)
        if "stages.json" in names or name in ("config.json", "model.safetensors"):
            assert found is None or found == predictions(any_runtime)


WEIGHTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "missing weights: heads.classifiers.0.bias": lambda weights: weights.pop("heads.classifiers.0.bias"),
    "unknown weights: heads.extra": lambda weights: weights.update({"heads.extra": torch.zeros(2)}),
    r"heads.classifiers.0.bias is \(5,\), expected \(3,\)": lambda weights: weights.update(
        {"heads.classifiers.0.bias": torch.zeros(5)}
    ),
    "missing weights: backbone.* and .* more": lambda weights: [
        weights.pop(name) for name in [*weights] if name.startswith("backbone.encoder")
    ],
}
LOADERS: dict[str, Callable[[Path], Any]] = {
    "load_model": load_model,
    "Classifier": Classifier.from_pretrained,
    "ExitModel": ExitModel.from_pretrained,
    "AutoModel": AutoModelForSequenceClassification.from_pretrained,
    "export": lambda folder: export(folder, folder.parent / "out"),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("reason", WEIGHTS)
def test_every_loader_refuses_weights_that_do_not_fit_by_name(
    saved: Path, tmp_path: Path, loader: str, reason: str
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    WEIGHTS[reason](weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CannotLoad, match=reason):
        LOADERS[loader](folder)


def test_stages_cannot_name_a_file_outside_their_folder(exported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    for name in ("../other.onnx", str(exported / "stages.onnx"), "..", "a\\b.onnx"):
        edit(folder / "stages.json", ("digests", name), "replace", "")
        with pytest.raises(CannotLoad, match="not a file of its folder"):
            OnnxRuntime(folder)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("exits", [1, 2, 99], "up to the last of 4 layers"),
        ("exits", [1, 2, 4], "do not fit exits"),
        ("id2label", {"0": "red", "1": "green"}, "disagree"),
        ("problem_type", "choice", "problem_type='choice'"),
        ("policy", {"rule": "layer", "threshold": 99}, "no exit at this layer"),
    ],
)
def test_the_config_of_an_export_is_checked_against_its_stages(
    exported: Path, tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    edit(folder / "config.json", (key,), "replace", value)
    sign(folder)
    with pytest.raises(OfframpError, match=reason):
        OnnxRuntime(folder)


SPECIAL = ("post_processor", "special_tokens", "[CLS]")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ((*SPECIAL, "ids"), [1, 2, 99], "the token 99, the model only 60"),
        (("post_processor", "single", 0, "SpecialToken", "id"), "x", "the tokenizer cannot be used"),
        (("model", "vocab", "good"), 60, "the token 60, the model only 60"),
        (("post_processor", "single", 1, "Sequence", "type_id"), 7, "the token type 7, the model only 2"),
        (("post_processor", "pair", 3, "Sequence", "type_id"), 2, "the token type 2, the model only 2"),
    ],
)
def test_a_tokenizer_that_gives_ids_without_an_embedding_is_refused(
    saved: Path, tmp_path: Path, path: tuple[Any, ...], value: Any, reason: str
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    edit(folder / "tokenizer.json", path, "replace", value)
    with pytest.raises(CannotLoad, match=reason):
        Classifier.from_pretrained(folder)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [("num_attention_heads", -1, "not a size"), ("pad_token_id", -1, "not a token")],
)
def test_a_config_that_the_encoder_accepts_but_cannot_run_is_refused(
    saved: Path, tmp_path: Path, key: str, value: int, reason: str
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    edit(folder / "config.json", ("encoder_config", key), "replace", value)
    with pytest.raises(CannotLoad, match=reason):
        Classifier.from_pretrained(folder)


def test_a_config_that_is_nested_too_deeply_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    edit(folder / "config.json", ("policy",), "replace", NESTED)
    with pytest.raises(CannotLoad, match="cannot be read"):
        ModelInfo.read(folder)
    with pytest.raises((CannotLoad, BadConfig)):
        ExitModel.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["links to files", "links to a cache", "hard links", "link to the folder"])
def test_an_export_behind_links_predicts_the_same(exported: Path, tmp_path: Path, kind: str) -> None:
    original, folder = Path(shutil.copytree(exported, tmp_path / "original")), tmp_path / "model"
    expected = predictions(original)
    if kind == "link to the folder":
        folder.symlink_to(original)
    else:
        folder.mkdir()
        for number, file in enumerate(sorted(original.iterdir())):
            link, target = folder / file.name, file
            if kind == "links to a cache":  # whose files have other names
                target = file.rename(original / str(number))
            link.hardlink_to(target) if kind == "hard links" else link.symlink_to(target)
    assert predictions(folder) == expected


@pytest.fixture
def certified(exported: Path, tmp_path: Path) -> Path:
    """An export with a certificate for its policy."""
    folder = Path(shutil.copytree(exported, tmp_path / "certified"))
    certificate = make_certificate(fingerprint=Manifest.load(folder).fingerprint)
    store_policy(folder, replace(Policy.parse("entropy:0.3"), certificate=certificate))
    return folder


def test_weights_that_were_replaced_with_new_digests_lose_the_certificate(certified: Path) -> None:
    assert Classifier.from_pretrained(certified, threads=1).runner.policy.certificate is not None
    content = bytearray((certified / "weights.bin").read_bytes())
    content[:4] = b"\0\0\0\0"
    (certified / "weights.bin").write_bytes(content)
    sign(certified)
    with pytest.warns(CertificateMismatch, match="weights"):
        assert Classifier.from_pretrained(certified, threads=1).runner.policy.certificate is None
    with pytest.warns(CertificateMismatch, match="weights"):
        assert "certificate  none" in str(describe(str(certified)).text)


def test_weights_of_a_saved_model_that_were_changed_lose_the_certificate(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    certificate = make_certificate(fingerprint=load_model(folder)[0].fingerprint())
    store_policy(folder, replace(Policy.parse("entropy:0.3"), certificate=certificate))
    assert "at most 10% of predictions" in str(describe(str(folder)).text)
    weights = load_file(folder / "model.safetensors")
    weights["heads.classifiers.0.bias"] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.warns(CertificateMismatch, match="fingerprint"):
        assert Classifier.from_pretrained(folder).runner.policy.certificate is None
    with pytest.warns(CertificateMismatch, match="fingerprint"):
        assert "certificate  none" in str(describe(str(folder)).text)


@pytest.fixture
def with_graph(certified: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An export with a certificate that also has its graph with the rule inside, and the portable folder of that."""
    write_portable(certified, tmp_path / "portable")
    include_graph(certified, tmp_path / "portable")
    return certified, tmp_path / "portable"


def double_weights(graph: Path) -> None:
    """The same graph with other weights."""
    model = onnx.load(graph)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, graph)


def test_a_graph_that_was_replaced_is_refused_and_with_new_digests_loses_the_certificate(
    with_graph: tuple[Path, Path],
) -> None:
    for folder in with_graph:
        assert Classifier.from_pretrained(folder, threads=1).runner.policy.certificate is not None
        double_weights(folder / GRAPH)
        with pytest.raises(CannotLoad, match=r"onnx/model\.onnx is not the file that was exported"):
            Classifier.from_pretrained(folder)
        sign(folder)
        with pytest.warns(CertificateMismatch, match="weights"):
            assert Classifier.from_pretrained(folder, threads=1).runner.policy.certificate is None
        with pytest.warns(CertificateMismatch, match="weights"):
            assert "certificate  none" in str(describe(str(folder)).text)


def test_a_graph_that_was_not_exported_is_refused(with_graph: tuple[Path, Path], exported: Path) -> None:
    with copy_of(exported) as folder:
        (folder / GRAPH).parent.mkdir()
        shutil.copyfile(with_graph[0] / GRAPH, folder / GRAPH)
        with pytest.raises(CannotLoad, match="not one of the files that were exported; remove it"):
            Classifier.from_pretrained(folder)


def test_another_policy_keeps_the_graph_and_its_certificate_names_it(with_graph: tuple[Path, Path]) -> None:
    folder, _ = with_graph
    certificate = make_certificate(policy="entropy:0.2", fingerprint=Manifest.load(folder).fingerprint)
    store_policy(folder, replace(Policy.parse("entropy:0.2"), certificate=certificate))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = Classifier.from_pretrained(folder, threads=1).runner
    assert stored.policy.certificate is not None
    assert stored.runtime.compiled.runs(stored.policy)


def test_digests_that_were_edited_are_refused(certified: Path) -> None:
    (certified / "weights.bin").write_bytes((certified / "weights.bin").read_bytes() + b"more")
    edit(certified / "stages.json", ("digests", "weights.bin"), "replace", digest(certified / "weights.bin"))
    with pytest.raises(CannotLoad, match=r"stages\.json is not the file that was exported"):
        OnnxRuntime(certified)
