"""A standard Hugging Face folder for other libraries and languages: they need no offramp to run it.

The model and its rule are one graph (`one_file.py`), under the names that transformers.js and others look for; the
config is that of the encoder, the tokenizer is the model's own. docs/other-languages.md is about its use.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from offramp.errors import Incompatible
from offramp.files import atomic_folder, read_json, write_files
from offramp.folder.manifest import GRAPH, TOKENIZER, Manifest
from offramp.model_info import CONFIG, ModelInfo
from offramp.onnx_export.one_file import metadata, one_file, text_length
from offramp.reports.card import CARD, card_text, policy_section, table
from offramp.row_hashes import FILE

QUANTIZED_GRAPH = "onnx/model_quantized.onnx"
DTYPES = {"fp32": "fp32", "int8": "q8"}
"""The names that transformers.js has for our precisions; without one, it would choose by the device."""


def write_portable(folder: Path, path: Path, exit_logits: bool = False) -> None:
    """Writes the model in an exported folder, with its policy, as a folder for other libraries; with `exit_logits`,
    the graph also returns those of all exits on the way."""
    manifest = Manifest.load(folder)
    info = manifest.check(ModelInfo.read(folder))
    if info.policy is None:
        raise Incompatible(f"{folder} has no policy; calibrate it first.")
    if not manifest.branches:
        raise Incompatible(f"{folder} is a portable folder already.")
    graph = one_file(folder, info.policy, exit_logits)
    with atomic_folder(path) as draft:
        (draft / GRAPH).parent.mkdir()
        (draft / GRAPH).write_bytes(graph.SerializeToString())
        if manifest.precision == "int8":
            link_or_copy(draft / GRAPH, draft / QUANTIZED_GRAPH)
        own = replace(manifest, branches=(), exported_weights=manifest.stage_weights, digests={}).save(draft)
        tokenizer = padding_tokenizer(folder, info, manifest)
        tokenizer.save(str(draft / TOKENIZER))
        for name, content in (
            (CONFIG, encoder_config(replace(info, policy=own.bind(info.policy)), own)),
            ("tokenizer_config.json", tokenizer_config(tokenizer, info, manifest)),
        ):
            (draft / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        own.save(draft)
        if (folder / FILE).is_file():
            shutil.copyfile(folder / FILE, draft / FILE)
        parts = [policy_section(info.policy), usage(info, manifest)]
        card = card_text(folder, info, "transformers.js", ["onnx"], parts)
        (draft / CARD).write_text(card, encoding="utf-8")


def include_graph(folder: Path, portable: Path) -> None:
    """Copies the graph of a portable folder into the exported one that it was made from; its certificate names both
    from then on."""
    manifest, info = Manifest.load(folder), ModelInfo.read(folder)
    (folder / GRAPH).parent.mkdir()
    shutil.copyfile(portable / GRAPH, folder / GRAPH)
    manifest = manifest.add(folder, GRAPH)
    assert info.policy is not None
    config = read_json(folder / CONFIG) | {"policy": manifest.bind(info.policy).to_json()}
    write_files({folder / CONFIG: json.dumps(config, indent=2)})


def link_or_copy(source: Path, path: Path) -> None:
    """The same file under a second name in its folder. A symbolic link is kept by most copies and archives."""
    try:
        path.symlink_to(source.name)
    except OSError:  # on Windows, only some users may
        shutil.copyfile(source, path)


def padding_tokenizer(folder: Path, info: ModelInfo, manifest: Manifest) -> Tokenizer:
    """The tokenizer, which truncates and pads by itself."""
    settings = manifest.tokenizer
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.enable_truncation(text_length(info, manifest), direction=settings["truncation_side"])
    padding = settings["pad_token_id"]
    tokenizer.enable_padding(pad_id=padding, pad_token=tokenizer.id_to_token(padding))
    return tokenizer


def encoder_config(info: ModelInfo, manifest: Manifest) -> dict[str, Any]:
    """The config of a plain classifier or tagger."""
    from transformers.models.auto import modeling_auto

    assert info.policy is not None
    names = (
        modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
        if info.problem.of_tokens
        else modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    )
    return {
        **info.encoder,
        "architectures": [names[info.backbone]],
        "id2label": {str(index): name for index, name in enumerate(info.labels)},
        "label2id": {name: index for index, name in enumerate(info.labels)},
        "problem_type": None if info.problem.of_tokens else str(info.problem),  # as transformers has it
        "offramp": metadata(info, manifest, info.policy),  # not every runtime shows the metadata of a graph
        "transformers.js_config": {"dtype": DTYPES[manifest.precision]},
    }


def tokenizer_config(tokenizer: Tokenizer, info: ModelInfo, manifest: Manifest) -> dict[str, Any]:
    """What transformers and transformers.js read beside tokenizer.json, of which they ignore length and padding."""
    settings = manifest.tokenizer
    unknown = json.loads(tokenizer.to_str())["model"].get("unk_token")
    return {
        **({"unk_token": unknown} if unknown else {}),
        "tokenizer_class": "PreTrainedTokenizerFast",  # tokenizer.json as it is
        "model_max_length": text_length(info, manifest),
        "truncation_side": settings["truncation_side"],
        "model_input_names": sorted({"input_ids", "attention_mask", *settings["model_input_names"]}),
        "pad_token": tokenizer.id_to_token(settings["pad_token_id"]),
    }


def usage(info: ModelInfo, manifest: Manifest) -> str:
    shape = f"(rows, tokens, {len(info.labels)})" if info.problem.of_tokens else f"(rows, {len(info.labels)})"
    outputs = f"`logits`: float32 {shape}; `layer`, where each row exited: int64 (rows,)"
    program = TAGS if info.problem.of_tokens else PAIRS if info.trained_on_pairs else TEXTS
    rows = [
        ["inputs", "`input_ids`, `attention_mask`, and `token_type_ids` if the graph has it: int64 (rows, tokens)"],
        ["optional inputs", "`threshold` (float64), `max_layer` (int64): by default those of the policy"],
        ["outputs", outputs],
        ["length", f"at most {text_length(info, manifest)} tokens; tokenizer.json truncates and pads"],
        ["metadata", "under the key `offramp`, in the graph and in config.json: labels, length, policy, certificate"],
    ]  # fmt: skip
    return f"""\
## Use

`{GRAPH}` holds the model and its exit rule, in {manifest.precision}: any ONNX Runtime runs it, in any language.

{table([["", ""], *rows])}

```js
{program}
```"""


TEXTS = """\
import { pipeline } from "@huggingface/transformers";

const classify = await pipeline("text-classification", "./FOLDER"); // the folder of this file
console.log(await classify("a text"));"""
TAGS = """\
import { pipeline } from "@huggingface/transformers";

const tag = await pipeline("token-classification", "./FOLDER"); // the folder of this file
console.log(await tag("a text", { aggregation_strategy: "simple" }));"""
PAIRS = """\
import { AutoModel, AutoTokenizer } from "@huggingface/transformers";

const tokenizer = await AutoTokenizer.from_pretrained("./FOLDER"); // the folder of this file
const model = await AutoModel.from_pretrained("./FOLDER");
const pair = { text_pair: "another text", truncation: true, return_token_type_ids: true };
const { logits, layer } = await model(tokenizer("a text", pair));
console.log(logits.tolist()[0], layer.tolist()[0]);"""
