"""Transforms: functions of Programs that are not op-specific; the records carry what is."""

from tvmfun.transforms.autodiff import grad, jvp, value_and_grad, vjp

__all__ = ["grad", "jvp", "value_and_grad", "vjp"]
