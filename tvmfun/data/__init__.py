"""Batches of examples for training loops: shuffled from a key, resumable at every batch, read ahead by a thread.

A *source* has examples by index: :class:`ArraySource`, :class:`Windows`, or any object with ``__len__`` and
``read``. A :class:`Stream` is an iterator with a state: :func:`batches` of a source, :class:`TextSource`, and the
results of :func:`shuffle`, :func:`pack`, :func:`stack` and :func:`prefetch`, which wrap streams. The ``state`` of a
stream is a small tree of integers. A checkpoint keeps it beside the parameters, and ``restore`` continues from it
without rereading earlier items.

>>> import numpy as np
>>> from tvmfun import random
>>> source = ArraySource({"x": np.arange(10.0), "y": np.arange(10)})
>>> stream = batches(source, 4, key=random.key(0), epochs=2)
>>> next(stream)["y"]
array([9, 1, 7, 0])
>>> state = stream.state
>>> rest = [batch["y"].tolist() for batch in stream]
>>> stream.restore(state)
>>> [batch["y"].tolist() for batch in stream] == rest
True
"""

from tvmfun.boundary import bound_methods as _bound_methods
from tvmfun.boundary import publish as _publish
from tvmfun.data.batching import Batches, Padded, batches
from tvmfun.data.sources import ArraySource, Source, Windows, memory_map
from tvmfun.data.streams import Stream, prefetch
from tvmfun.data.text import TextSource, pack, shuffle, stack
from tvmfun.names import missing as _missing

__all__ = [
    "ArraySource",
    "Batches",
    "Padded",
    "Source",
    "Stream",
    "TextSource",
    "Windows",
    "batches",
    "memory_map",
    "pack",
    "prefetch",
    "shuffle",
    "stack",
]

_publish(globals())
for _stream in Stream.__subclasses__():  # private classes, but public functions return them
    _bound_methods(_stream)

__getattr__ = _missing(__name__)
