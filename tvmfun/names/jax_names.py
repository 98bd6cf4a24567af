"""Names of JAX, NumPy, optax and Flax that tvmfun does not have, or has elsewhere."""

#: Where names of JAX, NumPy, Flax and Equinox are.
RENAMED = {
    "checkpointing": "tvmfun.checkpoint",
    "compact": "a frozen dataclass with tvmfun.tree.register_dataclass: docs/from_pytorch.md has one",
    "ConcretizationTypeError": "tvmfun.errors.ConcretizationError",
    "Conv": "tvmfun.nn.Conv2d",
    "ConvTranspose": "tvmfun.nn.ConvTranspose2d",
    "Dense": "tvmfun.nn.Linear",
    "Embed": "tvmfun.nn.Embedding",
    "eval_jaxpr": "Program.evaluate of tvmfun.trace(f)(*args)",
    "filter_grad": "tvmfun.grad",
    "filter_jit": "tvmfun.jit",
    "filter_value_and_grad": "tvmfun.value_and_grad",
    "grad_and_value": "tvmfun.value_and_grad",
    "in1d": "tvmfun.numpy.isin",
    "JaxRuntimeError": "tvmfun.errors.TvmfunError",
    "make_jaxpr": "tvmfun.trace(f)(*args)",
    "MultiHeadDotProductAttention": "tvmfun.nn.MultiHeadAttention",
    "NonConcreteBooleanIndexError": "tvmfun.errors.ConcretizationError",
    "PRNG": "tvmfun.random.PRNGKey",
    "PRNGKeyArray": "tvmfun.Array",
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
    r"\w*[sS]hard\w*|pjit|pmap|xmap|[mM]esh\w*|NamedSharding|PartitionSpec|pcast|pvary": (
        "a program runs on one device; vmap with an axis_name has the collectives"
    ),
    r"\w*callback\w*|host_\w+|outfeed\w*|infeed\w*": "compiled modules do not call back into Python",
    r"\w+_p|Primitive|composite|dce_sink\w*|stage": (
        "it is about the primitives of JAX's intermediate representation; Programs have ops"
    ),
    r"config|enable_x64|enable_custom_prng|default_matmul_precision|numpy_dtype_promotion|transfer_guard\w*": (
        "there are no global settings: a dtype is asked for by dtype=, and a precision by precision="
    ),
    r"disable_jit|debug": (
        "compiled modules do not call back into Python; f.__wrapped__ is the function that jit compiled, which a "
        "debugger or print can follow"
    ),
    r"profiler": "perf and the like see kernels by their names",
    r"distributed|experimental|extend|interpreters|monitoring": "there is no such part: docs/from_jax.md has the table",
    r"scaled_\w+|get_scaled_dot_general_config": "it is about products of formats of eight bits and less",
    r"after_all|create_token|precv|psend": "there are no tokens: programs are pure functions",
    r"rng_(uniform|bit_generator)|RandomAlgorithm": "random numbers come from keys: tvmfun.random",
    r"AccuracyMode|Tolerance|DotAlgorithm\w*|\w+Implementation|SvdAlgorithm": (
        "there is one implementation of each function"
    ),
    r"platform_dependent": "a program is compiled for one target at a time: jit(target=)",
}
