"""Streams: iterators that know where they are, and one that reads ahead in a thread."""

from __future__ import annotations

import atexit
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

from tvmfun.data.sources import positive
from tvmfun.errors import ArgumentError, DataError

__all__ = ["Stream", "prefetch"]


class Stream(Iterator[Any]):
    """An iterator that can say where it is, and go on from there in another process."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """Where the stream is, as a tree of integers: a checkpoint can keep it, and it does not change any more."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Goes to where a stream of the same data and arguments was when it had this state.

        Raises:
            DataError: if the state is that of a stream of other data.
        """


def with_fields(state: Any, own: Any) -> Any:
    """A state as the tuple that another one is, of which it must have the fields."""
    try:
        return type(own)(*state)
    except TypeError:
        what = f"the state must have the fields {', '.join(own._fields)}"
        raise DataError("restore", what, got=repr(state), hint="the state of such a stream") from None


def same_origin(state: Any, own: Any, size: str) -> Any:
    """A state like another one, of which the size of the data and the key must be the same."""
    result = with_fields(state, own)
    if result.size != own.size:
        what, hint = f"the state must be of {own.size} {size}", "the data it was saved with"
        raise DataError("restore", what, got=str(result.size), hint=hint)
    if tuple(result.key) != own.key:
        what, hint = f"the state must be of the key {list(own.key) or None}", "the key it was saved with"
        raise DataError("restore", what, got=str(list(result.key) or None), hint=hint)
    return result


def prefetch(iterator: Iterable[Any], size: int = 2, *, transform: Callable[[Any], Any] | None = None) -> Prefetch:
    """Reads ahead in a thread, so that the next batch is there when the step wants it.

    ``state`` is that of what has been taken out, not of what has been read. An error of the iterator or of the
    transform is raised where its item would have come, with its traceback.

    Args:
        iterator: what to read: a stream or anything one can iterate over. Nobody else may go on reading it.
        size: how many items may be waiting.
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
    """What :func:`prefetch` returns; leaving a ``with`` block, or losing the last reference, ends its thread."""

    def __init__(self, iterator: Iterator[Any], size: int, transform: Callable[[Any], Any] | None) -> None:
        self._iterator, self._size, self._transform = iterator, size, transform
        self._start()

    def _start(self) -> None:
        self._state = getattr(self._iterator, "state", None)
        # The thread knows the worker and not this object, so that nothing keeps a stream that nobody reads.
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
    def state(self) -> Any:
        """The iterator's state after what has been taken out.

        Raises:
            ArgumentError: if the iterator has no state.
        """
        if self._state is None:
            got = type(self._iterator).__name__
            raise ArgumentError("prefetch", "only streams have a state", got=got, hint="tvmfun.data.batches")
        return self._state

    def restore(self, state: Any) -> None:
        """Forgets what has been read ahead, and reads on from a state; see :meth:`Stream.restore`."""
        self.close()
        if not isinstance(self._iterator, Stream):
            got = type(self._iterator).__name__
            raise ArgumentError("prefetch", "only streams have a state", got=got, hint="tvmfun.data.batches")
        self._iterator.restore(state)
        self._start()

    def close(self) -> None:
        """Ends the thread, after the item it is reading; there will be no more items."""
        self._ended = True
        self._finalizer()
        self._worker.thread.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class _Worker:
    """The thread and its two queues, which the garbage collector may use at any instant: they take no lock."""

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
                del item  # or it would live until the next one is there
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
    """A thread that is within a kernel or a copy while Python goes away would crash the process."""
    workers = list(_workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.thread.join(timeout=10)
