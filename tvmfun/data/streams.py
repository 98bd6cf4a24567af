"""Streams: iterators with a resumable state, and one that reads ahead in a thread."""

from __future__ import annotations

import atexit
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np

from tvmfun.data.sources import positive
from tvmfun.errors import ArgumentError, DataError
from tvmfun.typing import PyTree

__all__ = ["Stream", "prefetch"]


class Stream(Iterator[Any]):
    """An iterator with a state from which another process can continue."""

    @property
    @abstractmethod
    def state(self) -> PyTree:
        """The position of the stream, an immutable tree of integers that a checkpoint can keep."""

    @abstractmethod
    def restore(self, state: PyTree) -> None:
        """Continues from the state of a stream of the same data and arguments.

        Raises:
            DataError: if the state is from a stream of other data.
        """


def with_fields(state: Any, own: Any) -> Any:
    """Converts a restored state to the type of ``own``, and checks its fields."""
    try:
        return type(own)(*state)
    except TypeError:
        what = f"the state must have the fields {', '.join(own._fields)}"
        raise DataError("restore", what, got=repr(state), hint="the state of such a stream") from None


def same_origin(state: Any, own: Any, size: str) -> Any:
    """Checks that a state has integers, the size of the data and the key of ``own``."""
    result = with_fields(state, own)
    for name, value, wanted in zip(own._fields, result, own, strict=True):
        if isinstance(wanted, int) and (np.ndim(value) or np.asarray(value).dtype.kind not in "iu"):
            raise DataError("restore", f"the state must have an integer as {name}", got=repr(value))
    if result.size != own.size:
        what, hint = f"the state must be of {own.size} {size}", "the data it was saved with"
        raise DataError("restore", what, got=str(result.size), hint=hint)
    if tuple(result.key) != own.key:
        what, hint = f"the state must be of the key {list(own.key) or None}", "the key it was saved with"
        raise DataError("restore", what, got=str(list(result.key) or None), hint=hint)
    return result


def prefetch(iterator: Iterable[Any], size: int = 2, *, transform: Callable[[Any], Any] | None = None) -> Prefetch:
    """Reads ahead in a thread, so that the next batch is ready when the step needs it.

    ``state`` is the state after the last item taken, not the last item read. An error of the iterator or of the
    transform is raised in place of its item, with its traceback.

    Args:
        iterator: a stream or any iterable. It must not be read elsewhere.
        size: the largest number of waiting items.
        transform: applied to each item in the thread; ``tvmfun.device_put`` brings it to the device.

    Raises:
        ArgumentError: if ``size`` is not positive.

    >>> import numpy as np
    >>> from tvmfun.data import ArraySource, batches
    >>> with prefetch(batches(ArraySource(np.arange(6)), 2), transform=lambda batch: -batch) as stream:
    ...     [batch.tolist() for batch in stream]
    [[0, -1], [-2, -3], [-4, -5]]
    """
    return Prefetch(iter(iterator), positive("prefetch", "size", size), transform)


class Prefetch(Stream):
    """The stream that :func:`prefetch` returns. Its thread ends with a ``with`` block, or with the last reference."""

    def __init__(self, iterator: Iterator[Any], size: int, transform: Callable[[Any], Any] | None) -> None:
        self._iterator, self._size, self._transform = iterator, size, transform
        self._start()

    def _start(self) -> None:
        self._state = getattr(self._iterator, "state", None)
        # The thread refers to the worker only, so that an unused stream is collected.
        self._worker = _Worker(self._iterator, self._size, self._transform)
        self._finalizer = weakref.finalize(self, self._worker.stop)
        self._finalizer.atexit = False
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        item, state, error = self._worker.results.get()
        if error is not None:
            self._ended = True
            raise error
        self._state = state
        self._worker.slots.put(None)
        return item

    @property
    def state(self) -> PyTree:
        """The iterator's state after the last item that was taken.

        Raises:
            ArgumentError: if the iterator has no state.
        """
        if self._state is None:
            got = type(self._iterator).__name__
            raise ArgumentError("prefetch", "only streams have a state", got=got, hint="tvmfun.data.batches")
        return self._state

    def restore(self, state: PyTree) -> None:
        """Drops the items read ahead, and continues from a state; see :meth:`Stream.restore`."""
        self.close()
        if not isinstance(self._iterator, Stream):
            got = type(self._iterator).__name__
            raise ArgumentError("prefetch", "only streams have a state", got=got, hint="tvmfun.data.batches")
        self._iterator.restore(state)
        self._start()

    def close(self) -> None:
        """Ends the thread after the current item, and the stream."""
        self._ended = True
        self._finalizer()
        self._worker.thread.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class _Worker:
    """The thread and its two queues. They are lock-free, because the garbage collector may use them at any time."""

    def __init__(self, iterator: Iterator[Any], size: int, transform: Callable[[Any], Any] | None) -> None:
        self.slots: SimpleQueue[None] = SimpleQueue()
        self.results: SimpleQueue[tuple[Any, Any, BaseException | None]] = SimpleQueue()
        self.stopped = False
        for _ in range(size):
            self.slots.put(None)
        self.thread = threading.Thread(target=self._run, args=(iterator, transform), name="prefetch", daemon=True)
        _workers.add(self)
        self.thread.start()

    def stop(self) -> None:
        self.stopped = True
        self.slots.put(None)

    def _run(self, iterator: Iterator[Any], transform: Callable[[Any], Any] | None) -> None:
        end: BaseException = StopIteration()
        try:
            self.slots.get()
            for item in iterator:
                state = getattr(iterator, "state", None)
                self.results.put((item if transform is None else transform(item), state, None))
                del item  # otherwise it lives until the next one is ready
                self.slots.get()
                if self.stopped:
                    return
        except StopIteration as error:
            end = RuntimeError("the transform of prefetch raised StopIteration")
            end.__cause__ = error
        except BaseException as error:
            end = error
        self.results.put((None, None, end))


_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Joins the threads at exit: one inside a kernel or a copy during finalization would crash the process."""
    workers = list(_workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.thread.join(timeout=10)
