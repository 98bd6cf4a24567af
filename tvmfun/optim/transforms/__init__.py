"""The steps that optimizers are chains of, by what they do to the updates.

The names of ``optax.transforms`` are here, too, wherever they are defined:

>>> from tvmfun.optim import transforms
>>> transforms.chain.__name__
'chain'
"""

from typing import Any

from tvmfun.names import missing

_NAMES = (
    "AddNoiseState",
    "ApplyIfFiniteState",
    "ConditionallyMaskState",
    "ConditionallyTransformState",
    "EmaState",
    "MaskedNode",
    "MaskedState",
    "MonitorState",
    "MultiSteps",
    "MultiStepsState",
    "NonNegativeParamsState",
    "PartitionState",
    "ShouldSkipUpdateFunction",
    "SnapshotState",
    "TraceState",
    "ZeroNansState",
    "adaptive_grad_clip",
    "add_decayed_weights",
    "add_noise",
    "apply_if_finite",
    "chain",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "conditionally_mask",
    "conditionally_transform",
    "ema",
    "flatten",
    "freeze",
    "keep_params_nonnegative",
    "masked",
    "measure_with_ema",
    "monitor",
    "named_chain",
    "partition",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "selective_transform",
    "skip_large_updates",
    "skip_not_finite",
    "snapshot",
    "trace",
    "zero_nans",
)


def __getattr__(name: str) -> Any:
    # Some are built on the modules of this package, so they cannot be imported with it.
    if name in _NAMES:
        from tvmfun import optim

        return getattr(optim, name)
    return missing(__name__)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
