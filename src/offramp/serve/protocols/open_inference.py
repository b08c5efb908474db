"""The Open Inference Protocol v2, of KServe, Triton and others, with Triton's binary tensors.

Inputs are the BYTES tensors `text` and, for pairs, `text_pair`. Where tokens are tagged, texts have any number of
spans: the tensors `start`, `end`, `label` and `score` have those of all texts, one after the other, and `spans` says
how many each text has.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from pydantic_core import to_json

import offramp
from offramp.errors import BadData, BadOption
from offramp.inference.texts import clean, describe
from offramp.serve.batcher import Reply
from offramp.serve.error_responses import Failure
from offramp.serve.protocols.base import (
    Body,
    Call,
    ExitOptions,
    Json,
    Operation,
    ServedModel,
    exit_headers,
    in_utf16,
    parse_json,
    ready_response,
    validate,
)

VERSION = "1"
JSON_LENGTH = "inference-header-content-length"
"""The header with the length of the JSON, if binary tensors follow it."""
INPUTS = ("text", "text_pair")
MEDIA_TYPES = ("application/json", "application/octet-stream", "")
"""tritonclient declares none."""
DTYPES = {"FP32": "<f4", "INT32": "<i4"}


class TensorParameters(Json):
    binary_data: bool = False
    """Whether to send an output as bytes."""
    binary_data_size: int | None = Field(default=None, ge=0)
    """The size of an input that is sent as bytes."""


class InputTensor(Json):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: TensorParameters = TensorParameters()


class RequestedOutput(Json):
    name: str
    parameters: TensorParameters = TensorParameters()


class Parameters(ExitOptions):
    """The parameters of a request; those of other servers are ignored."""

    binary_data_output: bool = False
    utf16: bool = False
    """As in the native /tag."""


class InferRequest(Json):
    id: str | None = None
    parameters: Parameters = Parameters()
    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None


class OutputTensor(NamedTuple):
    name: str
    datatype: str
    shape: list[int] | None
    """The shape of each text's part; None if parts differ in length and follow one another."""
    values: Callable[[Any], Sequence[Any]]
    """The values of a text's part, from its prediction."""

    def whole(self, texts: int, values: int) -> list[int]:
        """The shape for so many texts, with so many values in all."""
        return [values] if self.shape is None else [texts, *self.shape]


def infer(model: ServedModel, body: Body) -> Call:
    check_path(model, body.path_parts)
    length = json_length(body)
    request = validate(InferRequest, parse_json(body.content[:length]))
    texts = read_texts(request.inputs, body.content[length:])
    outputs = {output.name: output for output in output_tensors(model)}
    binary = dict.fromkeys(outputs, request.parameters.binary_data_output)
    if request.outputs:
        binary = {output.name: output.parameters.binary_data for output in request.outputs}
    for name in binary:
        if name not in outputs:
            raise BadOption(f"there is no output {name!r}; this model has {', '.join(outputs)}.")

    def respond(reply: Reply) -> Response:
        if request.parameters.utf16 and model.problem.of_tokens:
            reply = in_utf16(reply, texts)
        tensors = [write_tensor(outputs[name], reply, as_bytes) for name, as_bytes in binary.items()]
        rung = {} if reply.rung is None else {"rung": reply.rung}
        content = to_json(
            {
                "model_name": model.name,
                "model_version": VERSION,
                **({} if request.id is None else {"id": clean(request.id)}),
                "parameters": {"policy": reply.policy, **rung},
                "outputs": [tensor for tensor, _ in tensors],
            }
        )
        headers = exit_headers(reply)
        if not any(binary.values()):
            return Response(content, headers=headers, media_type="application/json")
        headers[JSON_LENGTH] = str(len(content))
        content = b"".join([content, *(data for _, data in tensors)])
        return Response(content, headers=headers, media_type="application/octet-stream")

    return Call(model.request(texts, body, request.parameters), respond)


def check_path(model: ServedModel, parts: Mapping[str, str]) -> None:
    model.check_name(parts["name"])
    if parts.get("version", VERSION) != VERSION:
        raise BadOption(f"the model has only version {VERSION}.")


def json_length(body: Body) -> int:
    whole = str(len(body.content))
    length = body.headers.get(JSON_LENGTH, whole)
    # int() refuses thousands of digits in its own way
    short = length.isascii() and length.isdigit() and len(length) <= len(whole)
    if not (short and int(length) <= len(body.content)):
        raise BadOption(f"{JSON_LENGTH}: {length[:20]!r} is not a length within the body.")
    return int(length)


def read_texts(inputs: Sequence[InputTensor], data: bytes) -> list[Any]:
    """Texts, or pairs; `data` holds the binary tensors one after the other."""
    texts: dict[str, list[str]] = {}
    for tensor in inputs:
        if tensor.name not in INPUTS or tensor.name in texts:
            raise BadOption(f"unexpected input {tensor.name!r}; send `text` and, for pairs, `text_pair`.")
        size = tensor.parameters.binary_data_size
        texts[tensor.name] = read_tensor(tensor, data[:size])
        data = data[size or 0 :]
    if data:
        raise BadData(f"{len(data)} bytes follow the last input.")
    if "text" not in texts:
        raise BadData("the input `text` is missing.")
    if "text_pair" not in texts:
        return texts["text"]
    if len(texts["text"]) != len(texts["text_pair"]):
        raise BadData("the inputs `text` and `text_pair` differ in length.")
    return [*zip(texts["text"], texts["text_pair"], strict=True)]


def read_tensor(tensor: InputTensor, data: bytes) -> list[str]:
    name, shape = tensor.name, tensor.shape
    if tensor.datatype != "BYTES":
        raise BadData(f"input {name}: the datatype is {tensor.datatype}, not BYTES.")
    if len(shape) not in (1, 2) or shape[1:] not in ([], [1]):
        raise BadData(f"input {name}: the shape is {shape}, not [texts] or [texts, 1].")
    if tensor.parameters.binary_data_size is not None:
        elements: list[Any] = unpack(name, data, tensor.parameters.binary_data_size)
    else:
        rows = [row if isinstance(row, list) else [row] for row in tensor.data or []]
        elements = [element for row in rows for element in row]
    if len(elements) != math.prod(shape):
        raise BadData(f"input {name}: {len(elements)} elements for the shape {shape}.")
    for index, element in enumerate(elements):
        if not isinstance(element, str):
            raise BadData(f"input {name}: element {index} is {describe(element)}, not a text.")
    return elements


def unpack(name: str, data: bytes, size: int) -> list[str]:
    """The texts of a binary BYTES tensor: each in UTF-8, after its length as 4 bytes, the lowest first."""
    texts, position = [], 0
    try:
        if len(data) != size:
            raise ValueError("the body ends too early")
        while position < size:
            (length,) = struct.unpack_from("<I", data, position)
            position += 4 + length
            if position > size:
                raise ValueError("a text is longer than the tensor")
            texts.append(data[position - length : position].decode())
    except (ValueError, struct.error) as error:
        raise BadData(f"input {name}, element {len(texts)}: {error}.") from None
    return texts


def pack(texts: Sequence[str]) -> bytes:
    return b"".join(struct.pack("<I", len(data)) + data for data in (text.encode() for text in texts))


def output_tensors(model: ServedModel) -> list[OutputTensor]:
    """A label only where there is just one; the probabilities tell the others apart. Where tokens are tagged, a value
    for each span of all texts, and the number of spans of each text."""
    layer = OutputTensor("layer", "INT32", [], lambda prediction: [prediction.layer])
    if model.problem.of_tokens:
        return [
            OutputTensor("spans", "INT32", [], lambda spans: [len(spans)]),
            OutputTensor("start", "INT32", None, lambda spans: [span.start for span in spans]),
            OutputTensor("end", "INT32", None, lambda spans: [span.end for span in spans]),
            OutputTensor("label", "BYTES", None, lambda spans: [span.label for span in spans]),
            OutputTensor("score", "FP32", None, lambda spans: [span.score for span in spans]),
            layer,
        ]
    score = OutputTensor("score", "FP32", [], lambda prediction: [prediction.score])
    if not model.problem.has_classes:
        return [score, layer]
    scores = OutputTensor("probabilities", "FP32", [len(model.labels)], model.scores)
    if model.problem.multi_label:
        return [scores, layer]
    label = OutputTensor("label", "BYTES", [], lambda prediction: [prediction.label])
    return [label, score, scores, layer]


def write_tensor(output: OutputTensor, reply: Reply, as_bytes: bool) -> tuple[dict[str, Any], bytes]:
    """The tensor in JSON, and its bytes if they are to follow the JSON."""
    values = [value for prediction in reply.predictions for value in output.values(prediction)]
    tensor = {
        "name": output.name,
        "datatype": output.datatype,
        "shape": output.whole(len(reply.predictions), len(values)),
    }
    if not as_bytes:
        return {**tensor, "data": values}, b""
    dtype = DTYPES.get(output.datatype)
    data = np.array(values, dtype).tobytes() if dtype else pack(values)
    return {**tensor, "parameters": {"binary_data_size": len(data)}}, data


def errors(failure: Failure) -> tuple[int, dict[str, Any]]:
    return 400 if failure.status == 422 else failure.status, {"error": failure.message}


INFER = Operation("Open Inference Protocol v2", InferRequest, infer, errors)


def probes(model: ServedModel) -> APIRouter:
    """Open to all: /v2/health/live, /v2/health/ready and /v2/models/M/ready."""
    router = APIRouter(dependencies=[Depends(use_errors)], include_in_schema=False)
    probe = partial(router.api_route, methods=["GET", "HEAD"])

    @probe("/v2/health/live")
    async def live() -> Response:
        return JSONResponse({"live": True})

    @probe("/v2/health/ready")
    async def ready(request: Request) -> Response:
        return ready_response(model, request)

    @probe("/v2/models/{name}/ready")
    @probe("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(request: Request) -> Response:
        check_path(model, request.path_params)
        return ready_response(model, request, name=model.name)

    return router


def metadata(model: ServedModel) -> APIRouter:
    """/v2 and /v2/models/M."""
    router = APIRouter(dependencies=[Depends(use_errors)], include_in_schema=False)
    platform = model.runner.runtime.name.split()[0]

    @router.get("/v2")
    async def server() -> Response:
        return JSONResponse(
            {"name": "offramp", "version": offramp.__version__, "extensions": ["binary_tensor_data"]}
        )

    @router.get("/v2/models/{name}")
    @router.get("/v2/models/{name}/versions/{version}")
    async def describe_model(request: Request) -> Response:
        check_path(model, request.path_params)
        return JSONResponse(
            {
                "name": model.name,
                "versions": [VERSION],
                "platform": f"offramp_{platform}",
                "inputs": [
                    {"name": name, "datatype": "BYTES", "shape": [-1]}
                    for name in (INPUTS[:1] if model.problem.of_tokens else INPUTS)
                ],
                "outputs": [
                    {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.whole(-1, -1)}
                    for tensor in output_tensors(model)
                ],
                "parameters": {"labels": json.dumps(model.labels)},
            }
        )

    return router


async def use_errors(request: Request) -> None:
    request.state.error_shape = errors
