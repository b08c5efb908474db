"""Converts a float32 graph to int8 weights with dynamically quantized activations."""

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.quant_utils import add_pre_process_metadata


def quantize(graph: onnx.ModelProto) -> onnx.ModelProto:
    add_pre_process_metadata(graph)  # it is optimized already; avoids a warning
    with TemporaryDirectory() as folder:
        file = Path(folder) / "graph.onnx"
        quantize_dynamic(
            graph,
            file,
            per_channel=True,
            # 7 bits: on CPUs without VNNI, sums of two 8-bit products overflow
            reduce_range=True,
            weight_type=QuantType.QInt8,
            # tensors whose type the quantizer cannot infer are float
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        return onnx.load(file)
