"""Compares values, vjps and jvps with PyTorch on PyTorch's own samples (OpInfo), in float64 on the CPU."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from interop.opinfo_table import JVP_FROM_VJP, LEFT_OUT, TABLE, VALUES_ONLY, Skip  # noqa: E402
from support.derivatives import in_numpy  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tvmfun  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("outside_of_unittest")]

SAMPLES = 3  # how many samples of one op are compared
TRIED = 400  # how many are looked at to find them
LARGEST = 20000  # elements of the largest tensor of a sample


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


ENTRIES = {entry_name(op): op for op in op_db}


def tensors(values: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]


def to_numpy(x: Any) -> np.ndarray:
    x = x.detach().resolve_conj()
    return x.float().numpy().astype(tvmfun.numpy.bfloat16) if x.dtype == torch.bfloat16 else x.numpy(force=True).copy()


def differentiable(x: Any) -> bool:
    return x.requires_grad and x.dtype.is_floating_point


class Case:
    """One sample: what PyTorch computes from it, and how to compute the same with tvmfun."""

    def __init__(self, op: Any, sample: Any, random: np.random.Generator, derivative: bool):
        function = TABLE[entry_name(op)]
        # Such functions read one triangle, or both, of a matrix that is supposed to be symmetric.
        hermitian = op.gradcheck_wrapper.__name__ == "gradcheck_wrapper_hermitian_input"
        self.function = (lambda x, *args, **kwargs: function(x + x.mT, *args, **kwargs)) if hermitian else function
        leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        leaves = [
            x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in leaves
        ]
        self.leaves = [to_numpy(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        self.moving = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and differentiable(x)]
        self.primals = [self.leaves[i] for i in self.moving]
        self.tangents = [np.asarray(random.standard_normal(x.shape), x.dtype) for x in self.primals]

        def reference(*moving: Any) -> list[Any]:
            current = list(leaves)
            for i, x in zip(self.moving, moving, strict=True):
                current[i] = x
            first, args, kwargs = pytree.tree_unflatten(current, self.spec)
            if hermitian:
                first = first + first.mT
            result = sample.output_process_fn_grad(op(first, *args, **kwargs))
            return tensors(torch.as_tensor(result) if isinstance(result, bool) else result)

        moving = [leaves[i] for i in self.moving]
        outputs = reference(*moving)
        if any(x.dtype.is_complex or x.layout != torch.strided for x in outputs):
            raise Skip("the result is complex or sparse")
        self.values = [to_numpy(x) for x in outputs]
        self.differentiated = [i for i, x in enumerate(outputs) if differentiable(x)] if derivative else []
        self.cotangents, self.vjp, self.jvp = [], [], None
        if self.differentiated:
            chosen = [outputs[i] for i in self.differentiated]
            cotangents = [torch.as_tensor(random.standard_normal(x.shape)).to(x.dtype) for x in chosen]
            self.cotangents = [to_numpy(x) for x in cotangents]
            grads = torch.autograd.grad(chosen, moving, cotangents, allow_unused=True)
            self.vjp = [
                np.zeros(x.shape) if g is None else to_numpy(g) for g, x in zip(grads, self.primals, strict=True)
            ]
            if op.supports_forward_ad and entry_name(op) not in JVP_FROM_VJP:
                self.jvp = self.torch_jvp(reference, moving)

    def torch_jvp(self, reference: Any, moving: list[Any]) -> list[np.ndarray] | None:
        with torch.autograd.forward_ad.dual_level():
            duals = [
                torch.autograd.forward_ad.make_dual(x.detach(), torch.as_tensor(t))
                for x, t in zip(moving, self.tangents, strict=True)
            ]
            try:
                outputs = reference(*duals)
            except (NotImplementedError, RuntimeError):  # without a forward mode for this sample
                return None
            found = [torch.autograd.forward_ad.unpack_dual(outputs[i]) for i in self.differentiated]
            return [np.zeros(x.primal.shape) if x.tangent is None else to_numpy(x.tangent) for x in found]

    def computed(self, moving: list[Any]) -> list[Any]:
        leaves = [tvmfun.numpy.asarray(x) if isinstance(x, np.ndarray) else x for x in self.leaves]
        for i, x in zip(self.moving, moving, strict=True):
            leaves[i] = x
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.function(first, *args, **kwargs)
        return [x for x in pytree.tree_leaves(result) if x is not None]

    @property
    def inputs(self) -> tuple:
        return self.primals, self.tangents, self.cotangents

    def valued(self, primals: list[Any]) -> list[Any]:
        values = self.computed(primals)
        assert len(values) == len(self.values), f"{len(values)} results instead of {len(self.values)}"
        return values

    def derived(self, primals: list[Any], tangents: list[Any], cotangents: list[Any]) -> Any:
        """Returns the vjp and the jvp, or None without a derivative."""
        if not self.differentiated:
            return None

        def chosen(*xs: Any) -> tuple:
            results = self.computed(list(xs))
            return tuple(results[i] for i in self.differentiated)

        _, pullback = tvmfun.vjp(chosen, *primals)
        _, pushed = tvmfun.jvp(chosen, tuple(primals), tuple(tangents))
        return list(pullback(tuple(cotangents))), list(pushed)

    def check(self, values: Any, derived: Any, rtol: float) -> None:
        for ours, wanted in zip(values, self.values, strict=True):
            assert_close("value", ours, wanted, rtol)
        if derived is None:
            return
        pulled, pushed = derived
        for ours, wanted in zip(pulled, self.vjp, strict=True):
            assert_close("vjp", ours, wanted, rtol)
        if self.jvp is not None:
            for ours, wanted in zip(pushed, self.jvp, strict=True):
                assert_close("jvp", ours, wanted, rtol)
        else:
            left = sum(np.vdot(c, np.asarray(t)) for c, t in zip(self.cotangents, pushed, strict=True))
            right = sum(np.vdot(g, t) for g, t in zip(self.vjp, self.tangents, strict=True))
            assert_close("jvp", left, right, rtol)


def assert_close(what: str, ours: Any, wanted: Any, rtol: float) -> None:
    ours = np.asarray(ours)
    assert ours.shape == wanted.shape, f"{what}: shape {ours.shape} instead of {wanted.shape}"
    if ours.dtype == np.float32 or wanted.dtype == np.float32:
        rtol = max(rtol, 1e-5)
    if wanted.dtype == np.float16 or ours.dtype.itemsize == 2:
        rtol = max(rtol, 1e-2)
    np.testing.assert_allclose(
        ours.astype(np.float64), np.asarray(wanted, np.float64), rtol=rtol, atol=rtol, err_msg=what
    )


def usable(sample: Any) -> str | None:
    """Returns why a sample is not compared, or None."""
    found = tensors((sample.input, sample.args, sample.kwargs))
    if any(x.layout != torch.strided for x in found):
        return "a sparse tensor"
    if any(x.dtype.is_complex for x in found):
        return "a complex tensor"
    if any(x.numel() == 0 for x in found):
        return "an empty tensor"
    if any(x.numel() > LARGEST for x in found):
        return "a large tensor"
    return None


def cases(name: str) -> tuple[list[Case], dict[str, int]]:
    op = ENTRIES[name]
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    found, skipped = [], {}
    derivative = op.supports_autograd and name not in VALUES_ONLY
    samples = op.sample_inputs(device="cpu", dtype=torch.float64, requires_grad=op.supports_autograd)
    for _, sample in zip(range(TRIED), samples, strict=False):
        reason = usable(sample)
        if reason is None:
            try:
                case = Case(op, sample, random, derivative)
                # Tracing tells which samples the table does not cover, before anything is compiled.
                tvmfun.eval_shape(lambda *xs, case=case: case.computed(list(xs)), *case.primals)
                found.append(case)
            except Skip as error:
                reason = str(error)
        if reason is not None:
            skipped[reason] = skipped.get(reason, 0) + 1
        if len(found) == SAMPLES:
            break
    return found, skipped


@pytest.mark.parametrize("name", sorted(TABLE))
def test_op(name: str, record_property: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about deprecated functions
        found, skipped = cases(name)
    record_property("opinfo_skipped", [f"{reason} ({n})" for reason, n in skipped.items()])
    assert found, f"no sample was compared: {skipped}"
    first, *others = found

    @tvmfun.jit
    def compiled(inputs: list, primals: list) -> tuple:
        values = [case.valued(own) for case, own in zip(found, primals, strict=True)]
        return values, first.derived(*inputs)

    values, of_first = compiled(first.inputs, [case.primals for case in found])
    # The derivatives of the other samples follow the same rules, which NumPy computes.
    derived = [of_first, *(in_numpy(case.derived, *case.inputs)(*case.inputs) for case in others)]
    for case, *results in zip(found, values, derived, strict=True):
        case.check(*results, rtol=1e-7)
    derivatives = sum(bool(case.differentiated) for case in found)
    forward = sum(case.jvp is not None for case in found)
    record_property("opinfo", [name, len(found), derivatives, forward])
    if ENTRIES[name].supports_autograd and name not in VALUES_ONLY:
        assert derivatives, "the op is differentiable, and no derivative was compared"


def test_every_entry_is_compared_or_left_out_with_a_reason() -> None:
    assert set(TABLE) <= set(ENTRIES)
    assert not set(TABLE) & set(LEFT_OUT)
    assert set(VALUES_ONLY) | set(JVP_FROM_VJP) <= set(TABLE)
    assert set(ENTRIES) == set(TABLE) | set(LEFT_OUT), sorted(set(ENTRIES) - set(TABLE) - set(LEFT_OUT))


def test_at_least_300_entries_are_compared() -> None:
    # Each entry of the table is a test of its own, which fails where no sample could be compared.
    assert len(TABLE) >= 300
