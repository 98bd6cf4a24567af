"""ONNX models as functions of their parameters, and inference functions as ONNX models.

``from_onnx`` reads models by a table of operators. ``onnx`` is imported when a function of this package is called.
"""

from tvmfun.boundary import publish
from tvmfun.interop.onnx.functions import OnnxFunction, Value, from_onnx
from tvmfun.interop.onnx.writer import to_onnx

__all__ = ["OnnxFunction", "Value", "from_onnx", "to_onnx"]

publish(globals())
