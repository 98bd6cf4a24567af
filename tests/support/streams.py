"""Streams that resume: what they yield, compared."""

import numpy as np

from tvmfun import checkpoints, random, tree
from tvmfun.data import ArraySource, batches

KEY = random.key(7)


def identical(first, second):
    """Whether two items, or lists of them, hold the same arrays or bytes in the same structure."""
    a, one = tree.flatten(first)
    b, two = tree.flatten(second)
    return one == two and all(
        x == y if isinstance(x, bytes) else (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in zip(a, b, strict=True)
    )


def assert_resumes(make, folder, everything=None):
    """A stream from any of its states, one of them through a file, yields the same items as without a break."""
    stream = make()
    states, items = [stream.state], []
    for item in stream:
        items.append(item)
        states.append(stream.state)
    assert everything is None or identical(items, everything)
    assert items, "there is something to resume"
    for i, state in enumerate(states):
        assert all(isinstance(leaf, int) for leaf in tree.leaves(state))
        again = make()
        if i == len(states) // 2:
            checkpoints.save(folder / "state", {"data": state})
            state = checkpoints.load(folder / "state", like={"data": again.state})["data"]
        again.restore(state)
        assert again.state == state
        assert identical(list(again), items[i:]), i
    # Going back is no different, and a stream that has ended can be restored.
    stream.restore(states[0])
    assert identical(list(stream), items)


def order(size, key=KEY, epoch=0, **options):
    """The order of a number of examples in an epoch."""
    stream = batches(ArraySource(np.arange(size)), 1, key=key, epochs=epoch + 1, **options)
    stream.restore(stream.state._replace(epoch=epoch))
    return [int(batch[0]) for batch in stream]
