"""A graph in float32 -> the same with int8 weights, its activations quantised as they come."""

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.quant_utils import add_pre_process_metadata


def quantised(graph: onnx.ModelProto) -> onnx.ModelProto:
    add_pre_process_metadata(graph)  # it is optimised already, and need not be advised to be
    with TemporaryDirectory() as folder:
        file = Path(folder) / "graph.onnx"
        quantize_dynamic(
            graph,
            file,
            per_channel=True,
            # 7 bits: on CPUs without VNNI, products of 8 bits overflow where they are added in pairs
            reduce_range=True,
            weight_type=QuantType.QInt8,
            # what the quantiser cannot infer here is float
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        return onnx.load(file)
