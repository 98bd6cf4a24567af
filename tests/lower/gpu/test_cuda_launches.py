"""The launches of Programs on GPUs: grids, threads, addresses, and loops of the host."""

import numpy as np
import pytest
from tvm.script import tirx as T

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, lax
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda.compilers import Image
from tvmfun.lower.codegen.cuda.launches import cuda_module
from tvmfun.runtime.cuda_module import ArrayType, Branch, Copy, Launch, Repeat, Scalar, Usage, While
from tvmfun.runtime.plan import Address

TARGET = targets.resolve({"kind": "cuda", "arch": "sm_90a"})


class Sources:
    """A compiler whose machine code is the source."""

    version, is_slow_to_start = "none", False

    def compile(self, source, kernels, options):
        return [Image(source.encode(), Usage(8, 0, 0, 0)) for _ in kernels]


def module_of(function, *shapes, dtype="float32"):
    program = tvmfun.trace(function)(*(ShapeDtype(shape, dtype) for shape in shapes))
    return cuda_module(pipeline.scheduled_module(program, TARGET), TARGET, Sources())


def test_elements_are_divided_among_threads():
    module = module_of(lambda x: tnp.exp(x) + 1, (300, 40))
    (launch,) = module.launches()
    assert launch.threads >= 12000 / 4
    assert set(launch.arguments) == {Address(0), Address(1)}
    assert module.inputs == module.results == (ArrayType((300, 40), "float32"),)
    assert module.plan.results == (1,) and module.arch == "sm_90a"
    (cubin,) = module.cubins
    assert cubin.kernels == (launch.kernel,) and "void __launch_bounds__" in cubin.image.decode()


def test_intermediates_are_in_the_block():
    module = module_of(lambda x, w: tnp.tanh(x @ w) @ w, (64, 64), (64, 64))
    first, second = module.launches()
    (block,) = {argument for argument in first.arguments if argument.slot == module.plan.block}
    assert block in second.arguments and Address(2) in second.arguments
    assert module.plan.analysis.temporaries >= 64 * 64 * 4


def test_a_scan_is_one_record_with_strides():
    body = lambda h, x: (tnp.tanh(h + x), h * x)
    module = module_of(lambda h, xs: lax.scan(body, h, xs), (4, 16), (1000, 4, 16))
    (loop,) = (step for step in module.steps if isinstance(step, Repeat))
    assert loop.count == 500  # of two steps, between which the state is in another buffer
    strides = {arg.strides for step in loop.body for arg in step.arguments if isinstance(arg, Scalar)}
    assert strides <= {(2,), (128,)} and strides
    launches = list(module.launches())
    assert len(launches) == len(module.steps) - 1 + 500 * len(loop.body)
    assert len(module.pack()) < 100_000


@T.prim_func(s_tir=True)
def squares(x: T.Buffer((100,), "float32"), y: T.Buffer((100,), "float32")):  # pyright: ignore
    for i, j in T.grid(3, 2):
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("first"):
                y[i * i * 3 + j * 8 + t] = x[i * i * 3 + t]
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("second"):
                y[i * i * 3 + t] = y[i * i * 3 + t] + x[j * 8 + t]


def test_only_loops_of_indices_that_are_not_affine_are_unrolled():
    # Both kernels read i * i * 3, so TVM computes it before the launches.
    program = tvmfun.trace(lambda x: tnp.exp(x))(ShapeDtype((100,), "float32"))
    module = pipeline.scheduled_module(program, TARGET)
    (name,) = (name for name in module.get_global_vars() if name.name_hint != "main")
    module.update_func(name, squares.with_attr("global_symbol", name.name_hint))
    steps = cuda_module(module, TARGET, Sources()).steps
    assert [step.count for step in steps] == [2, 2, 2]
    numbers = [[arg for launch in step.body for arg in launch.arguments if isinstance(arg, Scalar)] for step in steps]
    for i in range(3):
        assert {number.bits for number in numbers[i]} <= {0, 3 * i * i, i, i * i}
        assert any(number.strides for number in numbers[i])
        assert any(number.bits == 3 * i * i and not any(number.strides) for number in numbers[i])


def kernels(steps):
    return [step.kernel.rsplit("_", 1)[0] for step in steps]


def test_a_condition_is_tested_on_the_device():
    module = module_of(lambda x: lax.while_loop(lambda x: tnp.sum(x) < 3, lambda x: x + 1, x), (8,))
    *first, loop = module.steps
    assert isinstance(loop, While)
    # The condition is computed before the first test and in each iteration, by kernels that write the byte.
    for steps in (first, loop.body):
        assert loop.condition in steps[-1].arguments
    assert loop.condition.slot == module.plan.block


def test_a_loop_with_a_bound_counts_its_steps_on_the_device():
    loss = lambda x: tnp.sum(lax.while_loop(lambda x: tnp.sum(x) < 3, lambda x: x * x, x, max_steps=10))
    steps = module_of(tvmfun.grad(loss), (8,)).steps
    forward, backward = (step for step in steps if isinstance(step, While))
    # The number of steps, which the first loop counts, is what a kernel compares with in the second one.
    counted = {address for step in forward.body for address in step.arguments}
    assert backward.condition in backward.body[-1].arguments and not counted.isdisjoint(backward.body[-1].arguments)
    assert not any(isinstance(argument, Scalar) for step in backward.body for argument in step.arguments)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_branches_become_the_cases_of_one_record(count):
    branches = [lambda x, i=i: x * (i + 2) if i != 1 else x for i in range(count)]
    steps = module_of(lambda x: lax.switch(x[0].astype("int32"), branches, x), (8,)).steps
    (branch,) = (step for step in steps if isinstance(step, Branch))
    assert len(branch.cases) == count and branch.dtype == "int32"
    assert all(kernels(case) == ["switch"] for case in branch.cases)
    assert len({case[0].kernel for case in branch.cases}) == count
    assert branch.index in steps[steps.index(branch) - 1].arguments


@T.prim_func(s_tir=True)
def turned(index: T.Buffer((1,), "int32"), x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):  # pyright: ignore
    if index[0] > 0:
        if index[0] < 2:
            for t in T.thread_binding(8, thread="threadIdx.x"):
                with T.sblock("one"):
                    y[t] = x[t]
        else:
            for t in T.thread_binding(4, thread="threadIdx.x"):
                with T.sblock("two"):
                    y[t] = x[t]
    else:
        for t in T.thread_binding(2, thread="threadIdx.x"):
            with T.sblock("zero"):
                y[t] = x[t]


def test_conditions_that_simplification_has_turned():
    program = tvmfun.trace(lambda i, x: x * i)(ShapeDtype((1,), "int32"), ShapeDtype((8,), "float32"))
    module = pipeline.scheduled_module(program, TARGET)
    (name,) = (name for name in module.get_global_vars() if name.name_hint != "main")
    module.update_func(name, turned.with_attr("global_symbol", name.name_hint))
    (branch,) = cuda_module(module, TARGET, Sources()).steps
    assert branch.index == Address(0)
    assert [[step.block[0] for step in case] for case in branch.cases] == [[2], [8], [4]]


def test_nested_loops_and_branches():
    def step(i, x):
        return lax.cond(x[0] > i, lambda x: lax.fori_loop(0, 3, lambda j, x: x * j + i, x), lambda x: x + 1, x)

    module = module_of(lambda x: lax.fori_loop(0, 4, step, x), (8,))
    (loop,) = (record for record in module.steps if isinstance(record, Repeat))
    (branch,) = (record for record in loop.body if isinstance(record, Branch))
    (inner,) = (record for record in branch.cases[1] if isinstance(record, Repeat))
    assert (loop.count, inner.count) == (4, 3)
    strides = {arg.strides for record in inner.body for arg in record.arguments if isinstance(arg, Scalar)}
    assert strides <= {(1, 0), (0, 1)} and (0, 1) in strides


def test_constants_are_copied():
    module = module_of(lambda x: (x + 1, np.float32(2.5), np.int32(7)), (8,))
    copies = [step for step in module.steps if isinstance(step, Copy)]
    values = [module.constants[copy.source.offset :][: copy.nbytes] for copy in copies]
    assert sorted(values) == sorted([np.float32(2.5).tobytes(), np.int32(7).tobytes()])
    assert {copy.source.slot for copy in copies} == {module.constants_slot}
    assert {copy.target.slot for copy in copies} == set(module.plan.results[1:])


def test_workspaces_of_a_kernel_do_not_overlap():
    step = lambda h, x: (tnp.tanh(h @ h + x) @ h, h[0])
    module = module_of(lambda h, xs: lax.scan(step, h, xs), (16, 16), (5, 16, 16))
    (loop,) = (step for step in module.steps if isinstance(step, Repeat))
    arguments = {arg for step in loop.body for arg in step.arguments if isinstance(arg, Address)}
    offsets = sorted(arg.offset for arg in arguments if arg.slot == module.plan.block)
    ends = [*offsets[1:], module.plan.analysis.temporaries]
    assert offsets and all(end - offset >= 16 * 4 for offset, end in zip(offsets, ends, strict=True))
    assert ends[-1] >= 2 * 16 * 16 * 4  # the product and its tanh


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_equal_layers_share_machine_code(dtype):
    def layers(x, *weights):
        for w in weights:
            x = tnp.tanh(x @ w)
        return x

    module = module_of(layers, (32, 64), *[(64, 64)] * 4, dtype=dtype)
    launches = [step for step in module.launches() if isinstance(step, Launch)]
    assert len(launches) >= 4 and len({launch.kernel for launch in launches}) < len(launches)


def test_reinterpreted_constants_have_a_form_in_cuda():
    bits = lambda dtype: lambda x: x + lax.bitcast_convert_type(tnp.arange(1, dtype=dtype), x.dtype)
    (cubin,) = module_of(bits("int32"), (1,)).cubins
    assert "__uint_as_float(" in cubin.image.decode() and "*)(&(" not in cubin.image.decode()
    (cubin,) = module_of(lambda x: tnp.argsort(tnp.arange(1) + 0 * x.astype("int32")), (1,)).cubins[-1:]
    assert "*)(&(0" not in cubin.image.decode()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_headers_that_compile_slowly_are_left_out(dtype):
    for cubin in module_of(lambda x: x @ x, (32, 32), dtype=dtype).cubins:
        text = cubin.image.decode()
        assert "cuda/std/type_traits" not in text and "is_same_v" in text and "__CUDACC_RTC__" in text


def test_a_target_without_architecture_is_refused():
    program = tvmfun.trace(lambda x: x + 1)(ShapeDtype((8,), "float32"))
    target = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
    module = pipeline.scheduled_module(program, target)
    with pytest.raises(errors.TargetError, match="needs an architecture"):
        cuda_module(module, targets.resolve("llvm"), Sources())
