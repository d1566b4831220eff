"""What a model can do and what it costs: accuracy, multiply-accumulates, parameters, bytes, latency."""

from cosep.measurement.accuracy import accuracy
from cosep.measurement.cost import macs, parameters, weight_bytes
from cosep.measurement.latency import Latency, latency, onnx_latency
from cosep.measurement.measurement import Comparison, Measurement, compare, measure

__all__ = [
    "Comparison",
    "Latency",
    "Measurement",
    "accuracy",
    "compare",
    "latency",
    "macs",
    "measure",
    "onnx_latency",
    "parameters",
    "weight_bytes",
]
