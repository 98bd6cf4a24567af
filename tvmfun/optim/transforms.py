"""The names of ``optax.transforms``, which other modules define.

>>> from tvmfun.optim import transforms
>>> transforms.chain.__name__
'chain'
"""

from typing import Any

from tvmfun.names import missing
from tvmfun.optim import adding, combine, conditions, constraining, momentum, monitoring

__all__ = sorted(
    name for module in (adding, combine, conditions, constraining, momentum, monitoring) for name in module.__all__
)


def __getattr__(name: str) -> Any:
    # Only tvmfun.optim has the functions with names in their errors: it wraps them after it has imported this module.
    if name in __all__:
        from tvmfun import optim

        return getattr(optim, name)
    return missing(__name__)(name)


def __dir__() -> list[str]:
    return __all__
