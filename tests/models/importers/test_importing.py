"""For every system: files, safety, labels, errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from offramp import ExitModel
from offramp.errors import BadConfig, CannotLoad
from offramp.models.importers import import_checkpoint, import_weights

Make = Callable[..., Any]
Inputs = dict[str, Tensor]


class Unsafe:
    """Something in a pickle that is not a tensor."""


def save(folder: Path, old: Any, weights: Any = None) -> Path:
    (folder / "config.json").write_text(json.dumps(old.config))
    torch.save(old.weights if weights is None else weights, folder / "pytorch_model.bin")
    return folder


def test_a_pickle_and_safetensors_give_the_same_model(tmp_path: Path, deebert: Make) -> None:
    old = deebert()
    from_pickle = import_checkpoint(save(tmp_path, old)).model.fingerprint()
    (tmp_path / "pytorch_model.bin").unlink()
    save_file(old.weights, tmp_path / "model.safetensors")
    assert import_checkpoint(str(tmp_path)).model.fingerprint() == from_pickle


def test_a_pickle_of_the_old_format_is_read(tmp_path: Path, deebert: Make) -> None:
    old = deebert()
    save(tmp_path, old)
    torch.save(old.weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert import_checkpoint(tmp_path).system == "deebert"


def test_shards_give_the_same_model_as_one_file(tmp_path: Path, deebert: Make) -> None:
    old = deebert()
    whole = import_checkpoint(save(tmp_path, old)).model.fingerprint()
    (tmp_path / "pytorch_model.bin").unlink()
    names = list(old.weights)
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for i in range(2):
        save_file({name: old.weights[name] for name in names[i::2]}, tmp_path / f"part-{i}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert import_checkpoint(tmp_path).model.fingerprint() == whole


def test_shards_outside_the_folder_are_refused(tmp_path: Path, deebert: Make) -> None:
    save(tmp_path, deebert())
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "other.bin")
    index = {"weight_map": {"classifier.weight": f"../{tmp_path.name}/other.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(CannotLoad, match="files in the same folder"):
        import_checkpoint(tmp_path)


def test_a_pickle_with_more_than_tensors_is_refused(tmp_path: Path, deebert: Make) -> None:
    old = deebert()
    save(tmp_path, old, {**old.weights, "extra": Unsafe()})
    with pytest.raises(CannotLoad, match=r"can run any code.*model\.safetensors"):
        import_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut short"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_damaged_file_is_an_error_that_says_so(
    content: bytes, name: str, tmp_path: Path, deebert: Make
) -> None:
    save(tmp_path, deebert())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CannotLoad, match=f"{name} is .*damaged"):
        import_checkpoint(tmp_path)


def test_a_pickle_of_something_else_is_refused(tmp_path: Path, deebert: Make) -> None:
    old = deebert()
    with pytest.raises(CannotLoad, match="not a dict of tensors"):
        import_checkpoint(save(tmp_path, old, {"state_dict": old.weights}))


def test_a_missing_folder_file_or_config_is_named(tmp_path: Path, deebert: Make) -> None:
    with pytest.raises(CannotLoad, match=r"no folder at .*nowhere"):
        import_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CannotLoad, match="has no weights"):
        import_checkpoint(tmp_path)
    save(tmp_path, deebert())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CannotLoad, match=r"config\.json cannot be read \(Expecting"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CannotLoad, match=r"config\.json cannot be read .*No such file"):
        import_checkpoint(tmp_path)


def test_an_imported_model_is_saved_and_loaded_like_any_other(
    tmp_path: Path, deebert: Make, exits_of: Make, inputs: Inputs
) -> None:
    old = deebert()
    model = import_weights(old.weights, old.config).model
    model.save_pretrained(tmp_path)
    assert torch.equal(exits_of(ExitModel.from_pretrained(tmp_path), inputs), exits_of(model, inputs))
    with pytest.raises(CannotLoad, match="needs no import"):
        import_checkpoint(tmp_path)


def test_an_unknown_weight_is_an_error_that_names_it(deebert: Make) -> None:
    old = deebert()
    with pytest.raises(CannotLoad, match=r"unknown weights: bert\.encoder\.layer\.9\.extra"):
        import_weights(old.weights | {"bert.encoder.layer.9.extra": torch.zeros(1)}, old.config)


@pytest.mark.parametrize("name", ["bert.encoder.layer.2.output.dense.bias", "classifier.bias"])
def test_a_missing_weight_is_an_error_that_names_it(name: str, deebert: Make) -> None:
    old = deebert()
    del old.weights[name]
    with pytest.raises(CannotLoad, match=f"missing weights: {name}"):
        import_weights(old.weights, old.config)


def test_a_weight_of_another_shape_is_an_error_that_names_it(deebert: Make) -> None:
    old = deebert()
    with pytest.raises(CannotLoad, match=r"word_embeddings\.weight is \(60, 16\), expected \(61, 16\)"):
        import_weights(old.weights, old.config | {"vocab_size": 61})


def test_a_checkpoint_of_fewer_layers_than_its_config_is_an_error(deebert: Make) -> None:
    old = deebert()
    with pytest.raises(CannotLoad, match=r"missing weights: .* more"):
        import_weights(old.weights, old.config | {"num_hidden_layers": 5})


def test_saved_position_ids_are_dropped_and_listed(deebert: Make) -> None:
    old = deebert()
    plain = import_weights(old.weights, old.config)
    more = import_weights(old.weights | {"bert.embeddings.position_ids": torch.arange(40)[None]}, old.config)
    assert set(more.dropped) - set(plain.dropped) == {"bert.embeddings.position_ids"}


def test_unknown_config_keys_are_not_imported(deebert: Make) -> None:
    old = deebert()
    foreign = {
        "_attn_implementation_internal": "someone/kernel",
        "_attn_implementation": "someone/kernel",
        "attn_implementation": "someone/kernel",
        "auto_map": {"AutoModel": "evil.Model"},
        "torch_dtype": "float16",
        "is_decoder": True,
        "pruned_heads": {"0": [1]},
        "quantization_config": {"quant_method": "x"},
    }
    plain = import_weights(old.weights, old.config).model.config
    model = import_weights(old.weights, old.config | foreign).model
    assert model.config.to_dict() == plain.to_dict()
    assert model.config.encoder_config._attn_implementation == plain.encoder_config._attn_implementation
    assert not {"auto_map", "quantization_config", "pruned_heads"} & set(vars(model.config.encoder_config))


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", "16"), ("hidden_act", "nonsense"), ("num_attention_heads", 5)]
)
def test_a_config_of_no_valid_encoder_is_an_error(key: str, value: Any, deebert: Make) -> None:
    old = deebert()
    with pytest.raises(CannotLoad, match=r"config\.json"):
        import_weights(old.weights, old.config | {key: value})


def test_labels_come_from_the_config(deebert: Make) -> None:
    old = deebert(labels=3)
    names = {"0": "contradiction", "1": "entailment", "2": "neutral"}
    config = import_weights(old.weights, old.config | {"id2label": names}).model.config
    assert config.id2label == {0: "contradiction", 1: "entailment", 2: "neutral"}
    assert config.problem_type == "single_label_classification"


@pytest.mark.parametrize(
    ("family", "saved", "expected"),
    [
        ("roberta", {}, ["contradiction", "neutral", "entailment"]),
        ("roberta", {"id2label": {"0": "a", "1": "b", "2": "c"}}, ["a", "b", "c"]),
        ("bert", {}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
    ],
)
def test_a_roberta_of_mnli_has_the_label_order_of_the_older_scripts(
    family: str, saved: dict[str, Any], expected: list[str], deebert: Make
) -> None:
    old = deebert(family, labels=3)
    config = import_weights(old.weights, old.config | {"finetuning_task": "mnli"} | saved).model.config
    assert [*config.id2label.values()] == expected


def test_labels_of_another_task_do_not_name_the_outputs(deebert: Make) -> None:
    old = deebert(labels=3)
    config = import_weights(old.weights, old.config | {"id2label": {"0": "no", "1": "yes"}}).model.config
    assert config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}


def test_the_number_of_labels_must_be_the_number_of_outputs(deebert: Make) -> None:
    old = deebert(labels=3)
    named = import_weights(old.weights, old.config, labels=["a", "b", "c"]).model
    assert named.config.id2label == {0: "a", 1: "b", 2: "c"}
    with pytest.raises(BadConfig, match="2 label names"):
        import_weights(old.weights, old.config, labels=["a", "b"])
    with pytest.raises(CannotLoad, match="num_labels=2, but the classifiers have 3 outputs"):
        import_weights(old.weights, old.config, num_labels=2)


def test_one_output_is_a_regression(deebert: Make) -> None:
    old = deebert(labels=1)
    assert import_weights(old.weights, old.config).model.config.problem_type == "regression"


def test_half_precision_weights_become_a_float32_model(deebert: Make) -> None:
    old = deebert()
    model = import_weights({name: tensor.half() for name, tensor in old.weights.items()}, old.config).model
    assert model.dtype == torch.float32
    assert not model.training


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert"])
def test_a_plain_transformers_model_is_an_error_that_names_from_encoder(
    family: str, tiny_classifier: Make
) -> None:
    plain = tiny_classifier(family)
    for model in (plain, plain.base_model):
        with pytest.raises(CannotLoad, match=r"ExitModel\.from_encoder"):
            import_weights(model.state_dict(), model.config.to_dict())


def test_unrecognized_weights_are_an_error_with_the_known_systems() -> None:
    with pytest.raises(CannotLoad, match=r"DeeBERT.*PABEE.*ELBERT.*ElasticBERT.*found conv\.weight"):
        import_weights({"conv.weight": torch.zeros(1)}, {})
