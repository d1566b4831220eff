"""What a model can do and what it costs: accuracy, multiply-accumulates, parameters, bytes, latency."""

from cosep.measurement.accuracy import Score, accuracy, score
from cosep.measurement.cost import macs, parameters, weight_bytes
from cosep.measurement.latency import latency, onnx_latency
from cosep.measurement.layers import layer_figures
from cosep.measurement.machine import made_now
from cosep.measurement.measurement import compare, measure
from cosep.records import Comparison, Latency, Measurement

__all__ = [
    "Comparison",
    "Latency",
    "Measurement",
    "Score",
    "accuracy",
    "compare",
    "latency",
    "layer_figures",
    "macs",
    "made_now",
    "measure",
    "onnx_latency",
    "parameters",
    "score",
    "weight_bytes",
]
