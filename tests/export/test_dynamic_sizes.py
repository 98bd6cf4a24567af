"""Exported functions of dynamic sizes: a training step with a smaller last batch, in Python and C++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.cpp import CHECKED, compiled, printed
from support.exported import bits

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax
from tvmfun.errors import ExportError
from tvmfun.export import INCLUDE, load, loader, read_manifest
from tvmfun.export.dynamic_contents import Formulas, plan_lines, shape_lines
from tvmfun.runtime.offsets import Lifetime
from tvmfun.runtime.plan import DynamicPlan

RNG = np.random.default_rng(7)
BATCHES = (64, 64, 33, 1, 0, 64)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def train_step(state, x, labels):
    """Returns a state, the loss, and a result of dynamic size."""

    def loss_fn(params):
        hidden = tnp.tanh(x @ params["w"])
        logits = hidden @ params["v"]
        picked = tnp.sum(tnp.where(tnp.arange(3) == labels[:, None], logits, 0.0))
        return (tnp.sum(tnp.logaddexp(logits[:, 0], logits[:, 1])) - picked) / tnp.maximum(x.shape[0], 1), logits

    (loss, logits), slopes = tvmfun.value_and_grad(loss_fn, has_aux=True)(state["params"])
    params = tvmfun.tree.map(lambda p, g: p - 0.1 * g, state["params"], slopes)
    return {"params": params, "steps": state["steps"] + 1}, loss, tnp.sort(logits, axis=0)


def start() -> dict:
    return {"params": {"w": floats(6, 20), "v": floats(20, 3)}, "steps": np.int32(0)}


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    return [(floats(n, 6), RNG.integers(0, 3, n).astype("int32")) for n in BATCHES]


B = {0: Dim("b", min=0)}
STATE = start()


@pytest.fixture(scope="module")
def jitted():
    return tvmfun.jit(train_step, donate_argnums=0, dynamic_shapes=(None, B, B))


@pytest.fixture(scope="module")
def library(jitted, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "step.so"
    jitted.lower(STATE, *batches()[0]).compile().export(path, values={"state": STATE})
    return path


def exported(function, path: Path, *specs, **options):
    """The function by ``jit``, and its library."""
    shapes = [ShapeDtype(shape, "float32") for shape in specs]
    compiled = tvmfun.jit(function, **options).lower(*shapes).compile()
    compiled.export(path)
    return compiled, load(path)


# -- Python ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_step_is_equal_to_the_bit(jitted, library):
    step = load(library)
    ours, theirs = tvmfun.tree.map(tnp.array, STATE), tvmfun.tree.map(np.array, STATE)
    for x, labels in batches():
        ours, *our_rest = jitted(ours, x, labels)
        theirs, *their_rest = step(theirs, x, labels)
        assert bits(our_rest) == bits(their_rest) and bits(ours) == bits(theirs)
        assert their_rest[1].shape == (len(x), 3)


def test_the_first_batch_has_no_elements(jitted, library):
    x, labels = floats(0, 6), np.zeros(0, "int32")
    ours = jitted(tvmfun.tree.map(tnp.array, STATE), x, labels)
    assert bits(load(library)(tvmfun.tree.map(np.array, STATE), x, labels)) == bits(ours)


def test_memory_is_that_of_jit(jitted, library):
    compiled, step = jitted.lower(STATE, *batches()[0]).compile(), load(library)
    for b in (0, 1, 33, 5000):
        plan, analysis = step.plan_for(b=b), compiled.memory_analysis({"b": b})
        assert (plan["arguments"], plan["results"]) == (analysis.arguments, analysis.outputs)
        assert (plan["temporaries"], plan["workspaces"]) == (analysis.temporaries, analysis.workspaces)


def test_the_manifest_names_sizes(library):
    manifest = read_manifest(library)
    assert [leaf["shape"] for leaf in manifest["inputs"][-2:]] == [["b", 6], ["b"]]
    (size,) = load(library).sizes
    assert (size.name, size.min, size.max) == ("b", 0, 2**31 - 1)
    assert manifest["sizes"] == [size._asdict()]
    leaf = load(library).outputs[-1]
    assert leaf.shape == ("b", 3) and leaf.is_dynamic and leaf.nbytes == 0


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 6), (3,)), r"labels must have the shape \(b,\) with b = 4 from axis 0 of x, got \(3,\)"),
        (((4, 5), (4,)), r"x must have the shape \(b, 6\) with b = 4 from axis 0 of x, got \(4, 5\)"),
        (((4, 6), (4, 1)), r"labels must have the shape \(b,\), got \(4, 1\)"),
    ],
)
def test_inconsistent_sizes(library, shapes, message):
    step = load(library)
    with pytest.raises(ExportError, match=message) as raised:
        step(STATE, np.zeros(shapes[0], "float32"), np.zeros(shapes[1], "int32"))
    assert raised.value.status == "WRONG_SIZE"


@pytest.mark.parametrize(
    ("sizes", "status", "message"),
    [
        ({}, "BAD_ARGUMENT", "it takes the dynamic sizes: b, got none"),
        ({"n": 3}, "BAD_ARGUMENT", "it takes the dynamic sizes: b, got n"),
        ({"b": -1}, "WRONG_SIZE", "the size b must be from 0 to 2147483647, got -1"),
        ({"b": 2**31}, "WRONG_SIZE", "sizes are integers of at most 2147483647, got 2147483648"),
        ({"b": 2**31 - 1}, "WRONG_SIZE", "less than 2[*][*]31 elements"),
    ],
)
def test_wrong_sizes(library, sizes, status, message):
    with pytest.raises(ExportError, match=message) as raised:
        load(library).plan_for(**sizes)
    assert raised.value.status == status


def test_static_functions_have_no_sizes(tmp_path):
    _, step = exported(lambda x: x + 1, tmp_path / "f.so", (3, 2))
    assert step.sizes == [] and step.plan == step.plan_for()
    with pytest.raises(ExportError, match="it takes the dynamic sizes: none, got b"):
        step.plan_for(b=3)
    assert bits(step(np.zeros((3, 2), "float32"))) == bits(np.ones((3, 2), "float32"))


def test_bounds_of_sizes(tmp_path):
    _, step = exported(lambda x: x[:2], tmp_path / "f.so", (Dim("n", min=2, max=5), 4))
    assert step(floats(5, 4)).shape == (2, 4)
    for n in (1, 6):
        with pytest.raises(ExportError, match=f"the size n must be from 2 to 5, got {n}"):
            step(floats(n, 4))


@pytest.mark.slow
def test_several_sizes_expressions_and_aliases(tmp_path):
    a, b = Dim("a"), Dim("b")

    def function(x, y, z):
        joined = tnp.concat([x[::2], y])
        return z * joined, x, tnp.sort(x).reshape(-1, 2), x[: x.shape[0] // 3], y[:, None] @ y[None, :], y.shape[0]

    compiled, step = exported(function, tmp_path / "f.so", (4 * a + 2,), (b,), (2 * a + b + 1,), donate_argnums=2)
    for n, m in ((1, 1), (3, 50), (40, 2), (3, 50)):
        call = floats(4 * n + 2), floats(m), floats(2 * n + m + 1)
        assert bits(step(*map(np.array, call))) == bits(compiled(*map(tnp.array, call)))
    with pytest.raises(ExportError, match=r"x must have the shape \(4\*a \+ 2,\) for an integer a, got \(7,\)"):
        step(floats(7), floats(1), floats(4))
    with pytest.raises(
        ExportError, match=r"z must have the shape \(2\*a \+ b \+ 1,\) with a = 1 from axis 0 of x and b"
    ):
        step(floats(6), floats(1), floats(5))
    with pytest.raises(ExportError, match="the size a must be from 1 to"):
        step(floats(2), floats(1), floats(2))


@pytest.mark.slow
def test_a_scan_over_a_dynamic_axis(tmp_path):
    def function(w, xs):
        def body(h, x):
            h = tnp.tanh(x @ w + h)
            return h, tnp.sum(h)

        return tvmfun.value_and_grad(lambda w: sum(map(tnp.sum, lax.scan(body, tnp.zeros(xs.shape[1:]), xs))))(w)

    compiled, step = exported(function, tmp_path / "f.so", (4, 4), ("t", "b", 4))
    w = floats(4, 4)
    for t, b in ((5, 3), (1, 1), (9, 20), (5, 3)):
        xs = floats(t, b, 4)
        assert bits(step(w, xs)) == bits(compiled(w, xs))


def test_callers_with_different_sizes_at_the_same_time(jitted, library):
    step = load(library, threads=2)
    calls = batches()
    expected = [bits(jitted(tvmfun.tree.map(tnp.array, STATE), *call)) for call in calls]

    def run(i):
        return bits(step(tvmfun.tree.map(np.array, STATE), *calls[i % len(calls)])) == expected[i % len(calls)]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(120)))


def test_initial_values_have_a_static_size(tmp_path):
    compiled = tvmfun.jit(lambda x: x + 1).lower(ShapeDtype(("b",), "float32")).compile()
    with pytest.raises(ExportError, match="an initial value must have a static size, unlike x"):
        compiled.export(tmp_path / "f.so", values={"x": floats(3)})


# -- C -----------------------------------------------------------------------------------------------------------------


def test_the_abi_checks_sizes(library):
    handle = ctypes.CDLL(str(library))
    handle.tvmfun_get_api.restype = ctypes.POINTER(loader._Api)
    api = handle.tvmfun_get_api().contents
    one, axes = (ctypes.c_int64 * 1)(5), (ctypes.c_int64 * 32)()
    step = ctypes.c_void_p()
    assert api.create(None, ctypes.byref(step)) == 0
    assert api.shapes(one, 1, None) == api.shapes(None, 1, axes) == api.shapes(one, 2, axes) == 1
    assert api.plan(ctypes.byref(loader._Plan())) == api.plan_for(one, 1, None) == 1
    none = (loader._Buffer * 8)()
    assert api.run(step, none, 5, none, 5) == 1
    assert api.message() == b"train_step takes 1 dynamic sizes (b), got 0"
    assert api.run_for(step, one, 1, none, 5, none, 5) != 0
    assert api.shapes(one, 1, axes) == 0 and list(axes)[:8] == [20, 3, 6, 20, 5, 6, 5, 20]
    signature = api.signature().contents
    leaf = signature.inputs[signature.input_count - 1]
    assert (leaf.shape[0], leaf.nbytes, signature.size_count) == (-1, 0, 1)
    api.destroy(step)


LAYOUTS = """
#include <stdio.h>
#include "internal.h"
%s
static const struct variant variant = {"", 0, 0, 0, 0, FRESH, 0, 0, 0, &dynamic_0};
static const tvmfun_size sizes[] = {{"a", 0, 1000}, {"b", 0, 1000}};
const struct contents tvmfun_contents = {{"f", 0, 0, 0, 0, sizes, 2}, &variant, 1, 0, 0, 0, 0, {axes, counts, 0, 0}};

tvmfun_status tvmfun_fail(tvmfun_status status, const char *format, ...) { return (void)format, status; }
tvmfun_status tvmfun_no_memory(uint64_t nbytes) { return (void)nbytes, TVMFUN_OUT_OF_MEMORY; }

int main(void) {
  long long a, b;
  struct layout *layout = tvmfun_layout_create(&variant);
  while (scanf("%%lld %%lld", &a, &b) == 2) {
    int64_t values[] = {a, b};
    if (tvmfun_layout_compute(layout, values)) return 1;
    printf("%%llu %%llu", (unsigned long long)layout->temporaries, (unsigned long long)layout->workspaces);
    for (int i = 0; i < FRESH; i++) printf(" %%llu", (unsigned long long)layout->fresh[i]);
    for (int i = 0; i < dynamic_0.buffer_count; i++) printf(" %%llu", (unsigned long long)layout->offsets[i]);
    puts("");
  }
  tvmfun_layout_destroy(layout);
  return 0;
}
"""


def random_plan(rng) -> DynamicPlan:
    formulas = [0, 64, 1000, "a 4 *", "b 400 *", "a b * 4 *", "a 3 + 2 // 256 *", "a 4 * b 256 * +"]
    draw = lambda count: tuple(formulas[i] for i in rng.integers(len(formulas), size=count))
    starts = rng.integers(60, size=60)
    lifetimes = [Lifetime(int(start), int(start + rng.integers(12))) for start in starts]
    events, open_ones = [], 0
    for size in draw(60):
        for _ in range(rng.integers(open_ones + 1)):
            events.append(None)
            open_ones -= 1
        events.append((size, int(rng.integers(1, 4))))
        open_ones += 1
    events += [None] * open_ones
    return DynamicPlan(("a", "b"), 0, draw(5), (), draw(60), tuple(lifetimes), 0, 0, tuple(events), 3)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no gcc")
def test_libraries_plan_as_python_does(tmp_path):
    rng = np.random.default_rng(0)
    values = [(0, 0), (1, 1), *rng.integers(0, 300, (40, 2)).tolist()]
    library = Path(loader.__file__).parent / "library"
    for _ in range(8):
        plan, formulas = random_plan(rng), Formulas(("a", "b"))
        lines = [*plan_lines(0, plan, formulas), *shape_lines([], [], formulas)]
        text = "\n".join([f"#define FRESH {len(plan.fresh)}", *formulas.lines(), *lines])
        (tmp_path / "program.c").write_text(LAYOUTS % text)
        command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", *CHECKED, f"-I{INCLUDE}"]
        sources = [f"-I{library}", tmp_path / "program.c", library / "sizes.c", "-o", tmp_path / "program"]
        subprocess.run([*command, *sources], check=True)
        given = "\n".join(f"{a} {b}" for a, b in values)
        process = subprocess.run([tmp_path / "program"], input=given, capture_output=True, text=True, check=True)
        for (a, b), line in zip(values, process.stdout.splitlines(), strict=True):
            expected, words = plan.at({"a": a, "b": b})
            analysis = expected.analysis
            numbers = [analysis.temporaries, analysis.workspaces, *expected.fresh, *words[2:]]
            assert list(map(int, line.split())) == numbers


TRAIN = """
#include <cstdio>
#include <fstream>
#include "tvmfun/step.hpp"

template <class T>
void read(std::ifstream& file, const tvmfun::Array& array) {
  file.read(static_cast<char*>(array.data()), static_cast<std::streamsize>(array.nbytes()));
}

void print(const tvmfun::Array& array) {
  const unsigned char* bytes = static_cast<const unsigned char*>(array.data());
  for (std::size_t i = 0; i < array.nbytes(); i++) std::printf("%02x", bytes[i]);
  std::puts("");
}

int main(int count, char** words) {
  tvmfun::Step step(words[1]);
  std::ifstream file(words[2], std::ios::binary);
  tvmfun::Call call(step, {{"b", std::atoi(words[3])}});
  for (int i = 3; i < count; i++) {
    std::int64_t b = std::atoi(words[i]);
    call.resize({{"b", b}});
    if (call.argument("x").shape() != std::vector<std::int64_t>{b, 6}) return 1;
    if (call.argument("labels").as<std::int32_t>().size() != static_cast<std::size_t>(b)) return 2;
    read<float>(file, call.argument("x"));
    read<std::int32_t>(file, call.argument("labels"));
    call.run();
    print(call.result("[1]"));
    print(call.result("[2]"));
    call.feed("[0]", "state");
  }
  for (const tvmfun::Array& leaf : call.arguments("state")) print(leaf);
  tvmfun::Sizes wrong[] = {{}, {{"n", 1}}, {{"b", 1}, {"n", 1}}, {{"b", -1}}, {{"b", std::int64_t{1} << 40}}};
  for (const tvmfun::Sizes& sizes : wrong) {
    try {
      call.resize(sizes);
      return 3;
    } catch (const tvmfun::Error& error) {
      std::printf("%d ", error.status());
    }
    call.run();
  }
  std::printf("%llu", static_cast<unsigned long long>(step.plan({{"b", 33}}).temporaries));
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
def test_training_in_cpp(jitted, library, tmp_path):
    program = compiled(TRAIN, tmp_path, *CHECKED)
    calls = batches()
    (tmp_path / "batches").write_bytes(b"".join(x.tobytes() + labels.tobytes() for x, labels in calls))
    *lines, last = printed(program, library, tmp_path / "batches", *BATCHES).splitlines()
    state, expected = tvmfun.tree.map(tnp.array, STATE), []
    for call in calls:
        state, *rest = jitted(state, *call)
        expected += bits(rest)
    expected += bits(state)
    assert [bytes.fromhex(line) for line in lines] == expected
    assert last.split() == ["1", "1", "1", "2", "2", str(load(library).plan_for(b=33)["temporaries"])]
