import ctypes
import gc
import importlib.metadata
import os
import sys
import zlib
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# Examples that a property is tried on are the same in each run; ``--hypothesis-profile random`` draws others.
# There is no deadline, because an example may have to be compiled.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("fixed")

pytest_plugins = ["support.levels", "support.vectors"]

# Each xdist worker has its own pool of threads. Together they should fill the machine once, but one thread per worker
# would hide what parallel loops do to each other.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _workers > 1:
    os.environ.setdefault("TVMFUN_NUM_THREADS", str(max(2, (os.cpu_count() or 1) // _workers)))
    # Idle threads of OpenMP spin for long where cores are shared: oracles of PyTorch took up to 100 times the CPU time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# OpenBLAS spins, too, and reads this as NumPy is imported: workers inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Bytes at which caches are dropped first, and how many more the process then has to have before they are again: what
# imported packages and live tests keep may exceed the first limit, and each time takes about a second.
_MOST_RESIDENT, _GROWTH = 3 << 30, 1 << 30


def _flags_of_xla() -> list[str]:
    """Flags with which XLA compiles in little more than half of the time: most oracles run once."""
    try:
        version = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
    except importlib.metadata.PackageNotFoundError:
        return []
    # XLA ends the process at a flag that it does not know.
    new = ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
    new = new if (0, 7) <= version <= (0, 10) else []
    return ["--xla_backend_optimization_level=0", *new]


os.environ.setdefault("XLA_FLAGS", " ".join(_flags_of_xla()))
# Exceptions that are expected keep their tracebacks: JAX looks at the files of all frames to shorten them.
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
# Tests must not see what earlier versions compiled.
os.environ["TVMFUN_CACHE_DIR"] = ""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shapes and the like are written in the ids of cases, which otherwise only count them."""
    if isinstance(val, (tuple, list)) and all(type(x) is int for x in val):
        return "x".join(map(str, val)) if val else "()"
    return None


@pytest.fixture(autouse=True)
def seed_of_the_name(request: pytest.FixtureRequest) -> None:
    """Seeds the module's ``RNG`` with the name of the test: its numbers do not depend on which tests ran before."""
    rng = getattr(getattr(request, "module", None), "RNG", None)
    if isinstance(rng, np.random.Generator):
        seed = zlib.crc32(request.node.name.encode())
        rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # Imported modules stay alive; scanning them for garbage took a sixth of the time, and scanning what tests make, of
    # which little is garbage, a twentieth.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="module", autouse=True)
def modest_memory():
    """Compiled modules take about a megabyte each, also JAX's: they are dropped where they have become many."""
    global _MOST_RESIDENT
    yield
    if _resident() < _MOST_RESIDENT:
        return
    import tvmfun

    tvmfun.clear_caches()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    # glibc keeps what was freed.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    _MOST_RESIDENT = max(_MOST_RESIDENT, _resident() + _GROWTH)


def _resident() -> int:
    """The bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler of CUDA: modules keep their sources, which the emulator runs."""
    from tvmfun.lower.codegen.cuda import compilers

    monkeypatch.setattr(compilers, "_libraries", lambda: iter(()))
    monkeypatch.setattr(compilers, "_nvccs", lambda: iter(()))
