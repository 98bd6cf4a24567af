"""Programs as ONNX models: a table of ops, and the walk over the equations."""

from tvmfun.interop.onnx.writing import contractions, control, elementwise, indexing, shapes
from tvmfun.interop.onnx.writing.builder import SPELLINGS, Builder, Value

__all__ = ["SPELLINGS", "Builder", "Value", "contractions", "control", "elementwise", "indexing", "shapes"]
