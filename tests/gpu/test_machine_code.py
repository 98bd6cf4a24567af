"""Training steps as machine code for GPUs, on a machine without one: registers, launches and threads."""

from collections import Counter

import pytest
from support.gpu_modules import gpu_module
from support.steps import SMALL

from gpu.programs import comparisons
from tvmfun.lower.codegen.cuda import compilers
from tvmfun.runtime.cuda_module import Branch, CudaModule, Launch, Repeat, While

needs_compiler = pytest.mark.skipif(compilers.why_none() is not None, reason="there is no compiler of CUDA")

#: The most launches and copies of a step on sm_90a; better schedules lower them. Branches count as all of their cases,
#: and loops whose number of steps depends on data as one step.
MOST_LAUNCHES = {
    "mnist": 25,
    "bert": 70,
    "bert-bfloat16": 70,
    "gpt2": 60,
    "gpt2-bfloat16": 60,
    "lstm": 140,
    "dlrm": 30,
    "resnet": 95,
}
#: The steps that are compiled for other architectures: each has both precisions. The instructions of the two are the
#: same, so that one has the convolutions and the other one the loops.
OTHERS = {"sm_80": ["mnist", "gpt2-bfloat16"], "sm_100": ["bert-bfloat16", "lstm"]}


def compiled(make, arch: str = "sm_90a") -> CudaModule:
    step, types = make()
    return gpu_module(step, *types, arch=arch, donate_argnums=0)


def launches(steps):
    """The launches and copies of a step, with counted loops unrolled, and all branches."""
    for step in steps:
        if isinstance(step, Repeat | While):
            count = step.count if isinstance(step, Repeat) else 1
            yield from list(launches(step.body)) * count
        elif isinstance(step, Branch):
            for case in step.cases:
                yield from launches(case)
        else:
            yield step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *(("sm_90a", name) for name in SMALL),
        *(pytest.param(arch, name, marks=needs_compiler) for arch, names in OTHERS.items() for name in names),
    ],
)
def test_steps_have_few_launches_and_become_machine_code(arch, name):
    module = compiled(SMALL[name], arch)
    found = list(launches(module.steps))
    assert arch != "sm_90a" or len(found) <= MOST_LAUNCHES[name], Counter(type(step).__name__ for step in found)
    kernels = [step for step in found if isinstance(step, Launch)]
    # Sums of scalars that the optimizer needs, such as the norm of all gradients.
    assert len([launch for launch in kernels if launch.threads == 1]) <= 2
    if module.missing:
        return
    usage = {kernel: usage for cubin in module.cubins for kernel, usage in zip(cubin.kernels, cubin.usage, strict=True)}
    assert module.arch == arch and usage
    # A kernel of more registers than these leaves most of a multiprocessor idle.
    assert {kernel: use for kernel, use in usage.items() if use.spills or use.registers > 255} == {}
    for launch in kernels:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        assert threads <= 1024 and usage[launch.kernel].registers * threads <= 65536
        assert usage[launch.kernel].shared + launch.shared_bytes <= (163 if arch == "sm_80" else 227) << 10
    assert CudaModule.unpack(module.pack()) == module


DERIVATIVES = [name for name in comparisons() if name.endswith(": derivatives")]
_TOGETHER = 12


# Some products of small matrices in float64, of the derivatives of decompositions, have no schedule of ours.
@pytest.mark.filterwarnings("ignore::tvmfun.errors.PerformanceWarning")
@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(DERIVATIVES), _TOGETHER))
def test_derivatives_of_every_op(first):
    """First and second derivatives in float64, those of several ops in one module."""
    some = [comparisons()[name] for name in DERIVATIVES[first : first + _TOGETHER]]
    apply = lambda *groups: [one.function(*group) for one, group in zip(some, groups, strict=True)]
    module = gpu_module(apply, *(one.arguments for one in some))
    module.check_code()
    assert module.cubins
