"""Names of JAX, NumPy, optax and Flax that tvmfun does not have, or has elsewhere."""

#: Where names of JAX, NumPy, Flax and Equinox are.
RENAMED = {
    "checkpointing": "tvmfun.checkpoint",
    "compact": "a frozen dataclass with tvmfun.tree.register_dataclass: docs/from_pytorch.md has one",
    "ConcretizationTypeError": "tvmfun.errors.ConcretizationError",
    "Conv": "tvmfun.nn.Conv2d",
    "ConvTranspose": "tvmfun.nn.ConvTranspose2d",
    "copy_to_host_async": "numpy.asarray(x)",
    "default_device": "jit(target=), or device_put(x, device)",
    "Dense": "tvmfun.nn.Linear",
    "dlpack": "tvmfun.numpy.from_dlpack, and numpy.from_dlpack of an array",
    "Embed": "tvmfun.nn.Embedding",
    "eval_jaxpr": "Program.evaluate of tvmfun.trace(f)(*args)",
    "explain_cache_misses": "the environment variable TVMFUN_LOG=compile",
    "filter_grad": "tvmfun.grad",
    "filter_jit": "tvmfun.jit",
    "filter_value_and_grad": "tvmfun.value_and_grad",
    "fwd_and_bwd": "tvmfun.vjp",
    "grad_and_value": "tvmfun.value_and_grad",
    "in1d": "tvmfun.numpy.isin",
    "JaxRuntimeError": "tvmfun.errors.TvmfunError",
    "log_compiles": "the environment variable TVMFUN_LOG=compile",
    "make_jaxpr": "tvmfun.trace(f)(*args)",
    "MultiHeadDotProductAttention": "tvmfun.nn.MultiHeadAttention",
    "NonConcreteBooleanIndexError": "tvmfun.errors.ConcretizationError",
    "PRNG": "tvmfun.random.PRNGKey",
    "PRNGKeyArray": "tvmfun.Array",
    "print_environment_info": "python -m tvmfun",
    "product": "tvmfun.numpy.prod",
    "row_stack": "tvmfun.numpy.vstack",
    "segment_mean": "segment_sum of the values, divided by segment_sum of ones",
    "shuffle": "tvmfun.random.permutation",
    "TracerArrayConversionError": "tvmfun.errors.ConcretizationError",
    "TracerBoolConversionError": "tvmfun.errors.ConcretizationError",
    "TracerIntegerConversionError": "tvmfun.errors.ConcretizationError",
    "TrainState": "a tuple or dataclass of the model and the state of the optimizer",
    "trapz": "tvmfun.numpy.trapezoid",
    "UnexpectedTracerError": "tvmfun.errors.LeakedTracerError",
}

#: Reasons why names that match a pattern do not exist.
REASONS = {
    r"c(omplex|double|single)\w*|ComplexWarning|eig(vals)?|roots|sort_complex|rsf2csf|funm|dft|wofz|sph_harm_y": (
        "TVM has no complex numbers"
    ),
    r"\w*fft\w*|FftType": "it is about complex numbers, which TVM does not have",
    r"(u?int[124]|float[468]_\w+)": "arrays have no dtype of less than 8 bits, and no float of less than 16",
    r"\w*[sS]hard\w*|pjit|[psx]map|\w*[mM]esh\w*|NamedSharding|P|PartitionSpec|(auto_)?pcast|pvary|"
    r"make_array_from_\w+": ("a program runs on one device; vmap with an axis_name has the collectives"),
    r"memory": "an array lies in the memory of its device",
    r"(new|empty|free|array)_ref|[rR]ef|ds": "there are no mutable arrays: x.at[i].set(y) is written in place by jit",
    r"\w*callback\w*|host_\w+|outfeed\w*|infeed\w*": "compiled modules do not call back into Python",
    r"\w+_p|Primitive|composite|dce_sink\w*|stage": (
        "it is about the primitives of JAX's intermediate representation; Programs have ops"
    ),
    r"config|enable_\w+|default_(matmul_precision|prng_impl)|numpy_\w+_promotion|\w*_guard\w*|allow_f16_reductions|"
    r"debug_key_reuse|legacy_prng_key|softmax_custom_jvp|threefry_partitionable|jax2tf\w+|CompilerEffortLevel|Inline": (
        "there are no global settings: a dtype is asked for by dtype=, and a precision by precision="
    ),
    r"check(ing)?_(tracer_)?leaks": "a tracer that outlives its trace raises LeakedTracerError where it is used",
    r"debug_infs": "infinities are numbers; debug_nans finds the op that makes a NaN",
    r"disable_jit|debug": (
        "compiled modules do not call back into Python; f.__wrapped__ is the function that jit compiled, which a "
        "debugger or print can follow"
    ),
    r"profiler": "perf and the like see kernels by their names",
    r"distributed|experimental|extend|interpreters|monitoring|api_util|custom_derivatives|default_registry|ffi|lib|"
    r"make_user_context|no_(execution|tracing)|test_util|version": (
        "there is no such part: docs/from_jax.md has the table"
    ),
    r"scaled_\w+|get_scaled_dot_general_config": "it is about products of formats of eight bits and less",
    r"after_all|create_token|effects_barrier|precv|psend": "there are no tokens: programs are pure functions",
    r"rng_(uniform|bit_generator)|RandomAlgorithm": "random numbers come from keys: tvmfun.random",
    r"AccuracyMode|Tolerance|DotAlgorithm\w*|\w+Implementation|SvdAlgorithm": (
        "there is one implementation of each function"
    ),
    r"custom_batching|custom_vmap": (
        "vmap batches each op by its own rule, also in functions with derivatives of their own"
    ),
    r"float0": "the tangents of integers are zeros of the integers' dtype",
    r"live_arrays": "Python frees an array with its last reference, and gc.get_objects() has those that remain",
    r"platform_dependent": "a program is compiled for one target at a time: jit(target=)",
}
