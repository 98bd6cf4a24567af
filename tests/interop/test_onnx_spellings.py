"""The table of ops that are written in ONNX, which needs no ONNX."""

from tvmfun.core.op import REGISTRY
from tvmfun.interop.onnx.writing import SPELLINGS
from tvmfun.interop.onnx.writing.builder import LEFT_OUT


def test_every_op_is_written_or_left_out():
    assert SPELLINGS.keys() | LEFT_OUT.keys() == REGISTRY.keys()
    assert not SPELLINGS.keys() & LEFT_OUT.keys()
