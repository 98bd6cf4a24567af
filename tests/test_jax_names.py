"""Every public name of ``jax`` and of its thin modules is here, or in a list with a reason; and their behaviour."""

import importlib
from collections import namedtuple

import jax
import jax.flatten_util
import jax.image
import jax.tree_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import tree, tree_util
from tvmfun.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    ShapeError,
    TargetError,
    TreeError,
)
from tvmfun.names import modules

SHARDING = "arrays lie on one device"
INTERNAL = "an inner module of JAX"
FLAGS = "there are no global flags"
REFERENCES = "there are no mutable arrays"
CALLBACKS = "compiled modules do not call Python"
#: Names of jax that are not here, and why; docs/from_jax.md tells what to do instead.
NOT_HERE = {
    "": {
        **dict.fromkeys(["NamedSharding", "P", "Shard", "auto_pcast", "make_array_from_callback"], SHARDING),
        **dict.fromkeys(["make_array_from_process_local_data", "reshard", "set_mesh", "shard_map", "pmap"], SHARDING),
        **dict.fromkeys(["make_array_from_single_device_arrays", "sharding", "smap", "distributed"], SHARDING),
        **dict.fromkeys(["remove_size_one_mesh_axis_from_type", "memory", "make_mesh"], SHARDING),
        **dict.fromkeys(["get_mesh", "get_abstract_mesh", "use_abstract_mesh"], SHARDING),
        **dict.fromkeys(["host_count", "host_id", "host_ids"], "JAX's older names of process_count and its relatives"),
        "default_device": SHARDING,
        **dict.fromkeys(["Ref", "empty_ref", "free_ref", "freeze", "new_ref", "ref", "ds", "array_ref"], REFERENCES),
        **dict.fromkeys(["ad", "api_util", "core", "custom_derivatives", "interpreters", "lib"], INTERNAL),
        **dict.fromkeys(["ffi", "test_util"], INTERNAL),
        **dict.fromkeys(["make_user_context", "stages", "dtypes", "version", "no_execution", "no_tracing"], INTERNAL),
        **dict.fromkeys(["allow_f16_reductions", "check_tracer_leaks", "checking_leaks", "config"], FLAGS),
        **dict.fromkeys(["debug_infs", "debug_key_reuse", "default_matmul_precision", "default_prng_impl"], FLAGS),
        **dict.fromkeys(["enable_checks", "enable_custom_prng", "enable_x64", "explain_cache_misses"], FLAGS),
        **dict.fromkeys(["array_garbage_collection_guard", "jax2tf_associative_scan_reductions"], FLAGS),
        **dict.fromkeys(["legacy_prng_key", "log_compiles", "numpy_dtype_promotion", "numpy_rank_promotion"], FLAGS),
        **dict.fromkeys(["softmax_custom_jvp", "thread_guard", "threefry_partitionable", "transfer_guard"], FLAGS),
        **{f"transfer_guard_{way}": FLAGS for way in ("device_to_device", "device_to_host", "host_to_device")},
        **dict.fromkeys(["debug", "pure_callback", "effects_barrier"], CALLBACKS),
        **dict.fromkeys(["CompilerEffortLevel", "Inline"], "options of XLA"),
        "copy_to_host_async": "arrays on the CPU are read where they are",
        "custom_batching": "every op has a batching rule",
        "disable_jit": "f.__wrapped__ is the function that jit compiled",
        "dlpack": "numpy.from_dlpack, and arrays have __dlpack__",
        "experimental": "JAX promises nothing about it",
        "export": "jit(f).lower(...).compile()",
        "float0": "integers have no tangents",
        "fwd_and_bwd": "vjp",
        "live_arrays": "Python's garbage collector knows",
        "make_jaxpr": "trace(f)(*args), whose result is a Program",
        "monitoring": "tvmfun.counters",
        "print_environment_info": "JAX's own",
        "profiler": "JAX's own",
    },
    "tree_util": {"default_registry": INTERNAL},
    "image": {},
    "ops": {},
    "flatten_util": {},
    "tree": {},
    "typing": {},
}  # fmt: skip


@pytest.mark.parametrize("module", NOT_HERE, ids=lambda module: module or "jax")
def test_every_name_is_here_or_has_a_reason(module):
    theirs = importlib.import_module(f"jax.{module}".rstrip("."))
    ours = getattr(tvmfun, module) if module else tvmfun
    names = {name for name in dir(theirs) if not name.startswith("_")} - {"jax"}
    # Modules of other packages have tests of their own.
    missing = {name for name in names if not hasattr(ours, name)} - {"scipy", "numpy", "lax", "random", "nn"}
    assert missing - set(NOT_HERE[module]) == set()


@pytest.mark.parametrize("name", [name for names in NOT_HERE.values() for name in names])
def test_a_missing_name_says_why_or_what_to_use(name):
    """Without a reason, an error would name whatever is spelled alike."""
    inner_modules_of_both = {"core", "dtypes", "export", "interpreters", "stages"}
    others = {"ad", "freeze"}  # are in other modules, or are like the name of another function
    if name not in inner_modules_of_both | others:
        assert name in modules.RENAMED or modules.reason_for(name)


# -- trees ---


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def tree_flatten_with_keys(self):
        return ((tree_util.GetAttrKey("x"), self.x), (tree_util.GetAttrKey("y"), self.y)), ["a list has no hash"]

    @classmethod
    def tree_unflatten(cls, static, children):
        assert static == ["a list has no hash"]
        return cls(*children)


tree_util.register_pytree_with_keys_class(Point)


def test_registered_classes_go_through_transforms():
    def norm(point):
        return point.x**2 + point.y**2

    step = tvmfun.jit(lambda point: tree.map(lambda p, g: p - 0.5 * g, point, tvmfun.grad(norm)(point)))
    for _ in range(2):
        found = step(Point(3.0, 4.0))
    assert isinstance(found, Point) and (float(found.x), float(found.y)) == (0.0, 0.0)
    assert [tree_util.keystr(path) for path, _ in tree.leaves_with_path([Point(1, 2)])] == ["[0].x", "[0].y"]
    assert hash(tree.structure(Point(1, 2))) == hash(tree.structure(Point(3, 4)))
    with pytest.raises(ArgumentError, match="only once"):
        tree_util.register_pytree_with_keys_class(Point)
    with pytest.raises(ArgumentError, match="must be a class"):
        tree_util.register_pytree_node(3, lambda x: x, lambda x: x)


def test_static_data_tell_structures_apart():
    calls = []

    @tvmfun.jit
    def length(name, x):
        calls.append(name)
        return len(name) * x

    @tree_util.register_static
    class Name(str):
        pass

    assert [int(length(Name(name), 2)) for name in ("ab", "ab", "abc")] == [4, 4, 6]
    assert calls == ["ab", "abc"]


trees = st.recursive(
    st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


@given(trees)
def test_keys_are_those_of_jax(x):
    ours, theirs = tree_util.tree_leaves_with_path(x), jax.tree_util.tree_leaves_with_path(x)
    for (path, _), (other, _) in zip(ours, theirs, strict=True):
        assert [type(key).__name__ for key in path] == [type(key).__name__ for key in other]
        assert list(map(repr, path)) == list(map(repr, other))
        for options in ({}, {"simple": True, "separator": "."}):
            assert tree_util.keystr(path, **options) == jax.tree_util.keystr(other, **options)
    assert tree_util.treedef_is_leaf(tree.structure(x)) == jax.tree_util.treedef_is_leaf(jax.tree.structure(x))
    assert tree_util.all_leaves([x]) == jax.tree_util.all_leaves([x])
    assert tree.broadcast(1, x) == jax.tree.broadcast(1, x)
    add = lambda a, b: a + b
    if tree.leaves(x):
        assert tree.reduce_associative(add, x) == jax.tree.reduce_associative(add, x)


def test_trees_that_do_not_fit():
    assert tree.reduce_associative(max, [], identity=0) == 0
    with pytest.raises(TreeError, match="no leaves"):
        tree.reduce_associative(max, [])
    with pytest.raises(TreeError, match=r"\[tree.broadcast\]"):
        tree.broadcast([1, 2], [1])
    assert tree_util.is_tree_node(list) and not tree_util.is_tree_node(int)
    assert tree_util.treedef_children(tree.structure({"a": 1, "b": [2]})) == [tree.structure(1), tree.structure([2])]


def test_dataclasses_with_named_fields():
    import dataclasses

    @dataclasses.dataclass
    class Layer:
        weight: object
        name: str = "layer"
        cache: object = dataclasses.field(default_factory=list)

    with pytest.raises(ArgumentError, match="'cache' in none or two"):
        tree.register_dataclass(Layer, ["weight"], ["name"])
    tree.register_dataclass(Layer, ["weight"], ["name"], ["cache"])
    layer = tree.map(lambda x: x + 1, Layer(1, "first", [5]))
    assert (layer.weight, layer.name, layer.cache) == (2, "first", [])


# -- images, vectors, segments ---

METHODS = ("nearest", "linear", "bicubic", "lanczos3", "lanczos5")
IMAGE = np.random.default_rng(0).normal(size=(5, 7, 2)).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("antialias", [True, False])
def test_resize(antialias):
    shapes = [(9, 3, 2), (5, 7, 4), (2, 20, 2), (1, 1, 1)]

    def all_of(module, x):
        sized = {(m, s): module.image.resize(x, s, m, antialias) for m in METHODS for s in shapes}
        return module.tree.leaves(sized), sum((y**2).sum() for y in sized.values())

    expected, theirs = jax.device_get(jax.jit(jax.grad(lambda x: all_of(jax, x)[1]))(IMAGE)), all_of(jax, IMAGE)[0]
    ours, found = tvmfun.jit(lambda x: (all_of(tvmfun, x)[0], tvmfun.grad(lambda x: all_of(tvmfun, x)[1])(x)))(IMAGE)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[1:])
def test_scale_and_translate(method):
    scale, translation = np.array([1.3, 0.6], "float32"), np.array([0.7, -1.2], "float32")

    def loss(module):
        moved = lambda *args: module.image.scale_and_translate(args[0], (6, 8, 2), (0, -2), *args[1:], method)
        return module.value_and_grad(lambda *args: (moved(*args) ** 2).sum(), (0, 1, 2))(IMAGE, scale, translation)

    for a, b in zip(tree.leaves(loss(tvmfun)), jax.tree.leaves(loss(jax)), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-4, atol=1e-4)


@pytest.mark.slow
def test_images_of_other_kinds():
    whole = np.arange(6, dtype="int32").reshape(2, 3)
    for method in METHODS:
        ours, theirs = (m.image.resize(whole, (4, 2), method) for m in (tvmfun, jax))
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert tvmfun.image.resize(tnp.ones((4, 4), "bfloat16"), (2, 0), "cubic").shape == (2, 0)
    assert tvmfun.vmap(lambda x: tvmfun.image.resize(x, (3, 3), "linear"))(tnp.ones((5, 2, 2))).shape == (5, 3, 3)
    for wrong in (lambda f: f.resize(whole, (4,), "linear"), lambda f: f.resize(whole[:0], (1, 3), "linear")):
        with pytest.raises(ShapeError):
            wrong(tvmfun.image)
    with pytest.raises(ArgumentError, match="unknown"):
        tvmfun.image.resize(whole, (4, 2), "quadratic")
    with pytest.raises(ArgumentError, match="nearest"):
        tvmfun.image.scale_and_translate(whole, (2, 3), (0,), np.ones(1), np.ones(1), "nearest")


def test_ravel_pytree():
    x = {"w": np.ones((2, 3), "float32"), "n": np.arange(2), "b": 0.5}
    ours, unravel = tvmfun.flatten_util.ravel_pytree(x)
    theirs, _ = jax.flatten_util.ravel_pytree(x)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
    again = tvmfun.jit(unravel)(ours)
    assert again["w"].shape == (2, 3) and again["n"].dtype == "int64"
    with pytest.raises(ShapeError, match=r"shape \(9,\)"):
        unravel(ours[1:])
    with pytest.raises(DtypeError, match="float32"):
        unravel(ours.astype("bfloat16"))
    empty, unravel = tvmfun.flatten_util.ravel_pytree({})
    assert empty.shape == (0,) and unravel(empty) == {}


@pytest.mark.quick("segment_prod", "segment_min")
@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
def test_segments_in_buckets(name):
    x, ids = np.random.default_rng(0).normal(size=(7, 2)).astype("float32"), np.array([0, 2, 2, 5, 0, -1, 9])
    ours, theirs = (getattr(m.ops, name)(x, ids, 6, bucket_size=3) for m in (tvmfun, jax))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    with pytest.raises(ArgumentError, match="positive"):
        getattr(tvmfun.ops, name)(x, ids, 6, bucket_size=0)


# -- functions ---


def test_second_names():
    assert tvmfun.remat is tvmfun.checkpoint and tvmfun.jacobian is tvmfun.jacrev
    assert tvmfun.ShapeDtypeStruct is tvmfun.ShapeDtype
    assert tvmfun.tree_util.tree_map is tvmfun.tree.map


def test_devices():
    assert tvmfun.device_count() == len(tvmfun.devices()) and tvmfun.default_backend() in ("cpu", "gpu")
    with pytest.raises(TargetError, match="kind"):
        tvmfun.devices("tpu")


def test_processes():
    for name in ("process_count", "process_index", "process_indices"):
        assert getattr(tvmfun, name)() == getattr(jax, name)()
    assert tvmfun.local_devices() == tvmfun.devices() and tvmfun.local_device_count() == tvmfun.device_count()
    assert tnp.ones(2).devices() == {tnp.ones(2).device}
    with pytest.raises(TargetError, match="one process"):
        tvmfun.local_devices(1)


def test_values_while_tracing():
    @tvmfun.jit
    def shifted(x):
        with tvmfun.ensure_compile_time_eval():
            assert float(tnp.sin(tnp.asarray(0.5)) * 2) > 0.9
            assert tvmfun.jit(lambda y: y + 1)(tnp.ones(2)).tolist() == [2.0, 2.0]
            known = [tvmfun.grad(lambda y: y**3)(2.0), tvmfun.vmap(tnp.sin)(tnp.zeros(2))[1], tvmfun.nn.relu(-1.0)]
            known.append(tvmfun.lax.fori_loop(0, 3, lambda i, s: s + i, 1.0))
            known.append(
                tvmfun.lax.cond(tnp.array(True), lambda: tvmfun.random.normal(tvmfun.random.key(0)) * 0, lambda: 1.0)
            )
            assert list(map(float, known)) == [12.0, 0.0, 0.0, 4.0, 0.0]
            with tvmfun.ensure_compile_time_eval():
                positive = x > known[2]
            slope = tvmfun.grad(lambda x: tvmfun.lax.scan(lambda c, _: (c * x, c), 1.0, length=2)[0])(x)
            y = tvmfun.jit(lambda x: tvmfun.nn.relu(x))(x)
        return tnp.where(positive, y + slope, 0)

    assert float(shifted(1.0)) == 3.0 and float(tvmfun.grad(shifted)(1.0)) == 3.0
    np.testing.assert_array_equal(tvmfun.vmap(shifted)(tnp.array([1.0, -1.0])), [3, 0])
    np.testing.assert_array_equal(tvmfun.jit(tvmfun.vmap(tvmfun.grad(shifted)))(tnp.array([1.0, -1.0])), [3, 0])


def test_options_without_effect():
    add = tvmfun.jit(lambda x, y: x + 1, keep_unused=True, inline=True)
    assert float(tvmfun.jit(lambda x: add(x, x))(1.0)) == 2.0


Pair = namedtuple("Pair", ["x", "y"])


def test_one_level():
    for node in ({"b": [1, 2], "a": 3}, [1, (2, 3)], (), None, Pair(1, {"z": 2})):
        ours, theirs = (m.tree_util.flatten_one_level_with_keys(node) for m in (tvmfun, jax))
        if not isinstance(node, Pair):  # JAX gives all fields of a named tuple the key of the first
            assert [(str(key), child) for key, child in ours[0]] == [(str(key), child) for key, child in theirs[0]]
        assert list(tree_util.flatten_one_level(node)[0]) == list(jax.tree_util.flatten_one_level(node)[0])
    for node in (Point(3, 4), Pair(3, 4)):
        keys, _ = tree_util.flatten_one_level_with_keys(node)
        assert [(str(key), child) for key, child in keys] == [(".x", 3), (".y", 4)]
    with pytest.raises(TreeError, match="a leaf has no children"):
        tree_util.flatten_one_level(3)


def test_block_until_ready_and_typeof():
    waited = tvmfun.block_until_ready({"x": tnp.ones(2), "n": 1})
    assert waited["n"] == 1 and waited["x"].shape == (2,)
    assert tvmfun.typeof(tnp.ones(2)) == tvmfun.ShapeDtype((2,), "float32")
    assert tvmfun.jit(lambda x: tvmfun.block_until_ready(x) + 1)(1.0) == 2.0


def test_custom_gradient():
    def power(module):
        @module.custom_gradient
        def f(x, n):
            return x**n, lambda g: (10.0 * g * x, 0.0 * n)

        return module.jit(module.vmap(module.grad(module.grad(f)), (0, None)))(np.ones(3, "float32"), 2.0)

    np.testing.assert_allclose(power(tvmfun), power(jax))
    with pytest.raises(GradientError, match="for each of 2"):
        tvmfun.grad(tvmfun.custom_gradient(lambda x, y: (x, lambda g: g)))(1.0, 2.0)
    with pytest.raises(GradientError, match="must return its result"):
        tvmfun.custom_gradient(lambda x: x)(1.0)


def test_closure_convert_hoists_what_is_differentiated():
    def program(module):
        def outer(a, x):
            converted, arrays = module.closure_convert(lambda x: a * x * x, x)
            return _apply(module, converted, x, *arrays)

        return [float(g) for g in module.grad(outer, (0, 1))(3.0, 2.0)]

    def _apply(module, converted, x, *arrays):
        @module.custom_vjp
        def apply(x, *arrays):
            return converted(x, *arrays)

        def forward(x, *arrays):
            return apply(x, *arrays), (x, arrays)

        def backward(residuals, g):
            x, arrays = residuals
            return module.vjp(lambda x, *arrays: converted(x, *arrays), x, *arrays)[1](g)

        apply.defvjp(forward, backward)
        return apply(x, *arrays)

    assert program(tvmfun) == program(jax) == [4.0, 12.0]


@pytest.mark.slow
def test_scopes_are_in_errors():
    with tvmfun.debug_nans(), pytest.raises(FloatingPointError, match=r"\(in layers/log\)"):
        tvmfun.jit(tvmfun.named_call(lambda x: _log(x), name="layers"))(-1.0)
    with pytest.raises(ArgumentError, match="string"):
        tvmfun.named_scope(3)


@tvmfun.named_scope("log")
def _log(x):
    return tnp.log(x)


def test_devices_have_the_attributes_of_jax():
    here = tvmfun.devices("cpu")[0]
    assert isinstance(here, tvmfun.Device)
    assert (here.platform, here.id, here.process_index) == ("cpu", 0, 0)
    x = tvmfun.numpy.ones(2)
    assert x.device == here == tvmfun.device_put(x, here).device
    assert {device.platform for device in tvmfun.jit(lambda x: x + 1)(x).devices()} == {"cpu"}


@pytest.mark.parametrize("moved", [tvmfun.device_get, tvmfun.device_put])
def test_what_is_traced_does_not_move(moved):
    def doubled(x):
        return moved({"x": x})["x"] * 2

    assert tvmfun.grad(doubled)(3.0) == 2
    assert tvmfun.jit(doubled)(3.0) == 6
