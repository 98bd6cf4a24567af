"""The transformations by the names of ``optax.transforms``.

>>> from tvmfun.optim import transforms
>>> transforms.chain.__name__
'chain'
"""

from typing import Any

from tvmfun.names import missing
from tvmfun.optim import adding, combine, conditions, constraining, momentum, monitoring

__all__ = []
__all__ += [
    name for module in (adding, combine, conditions, constraining, momentum, monitoring) for name in module.__all__
]


def __getattr__(name: str) -> Any:
    # tvmfun.optim wraps its functions after it has imported this module, hence the lookup at the first use.
    if name in __all__:
        from tvmfun import optim

        return getattr(optim, name)
    return missing(__name__)(name)


def __dir__() -> list[str]:
    return sorted(__all__)
