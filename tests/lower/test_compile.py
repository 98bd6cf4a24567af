"""The compile cache: in this process, on disk, shared, damaged."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import errors, files
from tvmfun.counters import counted
from tvmfun.lower import disk_cache
from tvmfun.manifest import container

needs_linker = pytest.mark.skipif(not shutil.which("g++"), reason="storing a module needs a C++ compiler to link it")
PROGRAM = textwrap.dedent(
    """
    import numpy as np, tvmfun, tvmfun.numpy as tnp
    from tvmfun.counters import counters
    f = tvmfun.jit(lambda x: tnp.tanh(x) @ x.T)
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.allclose(f(x), np.tanh(x) @ x.T, atol=1e-5)
    print(counters.compiles, counters.loads)
    """
)


def start(directory):
    environment = os.environ | {"TVMFUN_CACHE_DIR": str(directory), "TVMFUN_CACHE_MIN_SECONDS": "0"}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment)


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    compiles, loads = map(int, output.split())
    return compiles, loads


def test_equal_programs_share_one_module():
    make = lambda: tvmfun.jit(lambda x: tnp.sin(x) * 3.25)
    x = np.ones(5, "float32")
    make()(x)
    with counted() as events:
        make()(x)
    assert events.compiles == 0


def test_another_constant_is_another_module():
    x = np.ones(5, "float32")
    tvmfun.jit(lambda x: x * 1.5)(x)
    np.testing.assert_array_equal(tvmfun.jit(lambda x: x * 2.5)(x), 2.5 * x)


@pytest.fixture
def compiled_in(monkeypatch):
    """The numbers of modules that a call compiles and loads, with a cache directory but an empty cache in memory."""

    def run(directory, threshold="0"):
        monkeypatch.setenv("TVMFUN_CACHE_DIR", str(directory))
        monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", threshold)
        tvmfun.clear_caches()
        x = np.arange(6, dtype="float32").reshape(2, 3)
        with counted() as events:
            result = tvmfun.jit(lambda x: tnp.tanh(x) @ x.T)(x)
        np.testing.assert_allclose(result, np.tanh(x) @ x.T, atol=1e-5)
        return events.compiles, events.loads

    return run


@pytest.mark.slow
@needs_linker
def test_processes_share_the_disk(tmp_path, compiled_in):
    assert finish(start(tmp_path)) == (1, 0)
    assert compiled_in(tmp_path) == (0, 1)


@needs_linker
def test_damaged_entries_are_compiled_again(tmp_path, compiled_in):
    assert compiled_in(tmp_path) == (1, 0)
    (entry,) = tmp_path.glob("*.so")
    whole = entry.read_bytes()
    flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    for damage in (b"", whole[:100], whole[:-1], flipped, b"text" * 1000):
        entry.unlink()  # the library is in use
        entry.write_bytes(damage)
        assert compiled_in(tmp_path) == (1, 0)
        assert entry.read_bytes() != damage
        assert compiled_in(tmp_path) == (0, 1)


@needs_linker
@pytest.mark.slow
def test_processes_that_store_at_the_same_time(tmp_path, compiled_in):
    processes = [start(tmp_path) for _ in range(3)]
    results = [finish(process) for process in processes]
    assert all(compiles + loads == 1 for compiles, loads in results)
    assert len(list(tmp_path.iterdir())) == 1
    assert compiled_in(tmp_path) == (0, 1)


def test_quick_compiles_are_not_stored(tmp_path, compiled_in):
    assert compiled_in(tmp_path, threshold="1000") == (1, 0)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written(tmp_path, compiled_in):
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert compiled_in(file / "cache") == (1, 0)


def test_the_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    assert disk_cache.cache_directory() is None
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path))
    assert disk_cache.cache_directory() == tmp_path
    monkeypatch.delenv("TVMFUN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.cache_directory() == tmp_path / "tvmfun"


STEP = textwrap.dedent(
    """
    import hashlib, numpy as np, tvmfun, tvmfun.numpy as tnp
    from tvmfun.counters import counters
    def step(w, x):
        for n in range(4):
            w = tnp.tanh(w @ x + n) - tnp.mean(w, axis=n % 2, keepdims=True)
        return w, tnp.sum(w), w.reshape(-1), 1.5, x
    x = np.random.default_rng(0).normal(size=(33, 33)).astype("float32")
    compiled = tvmfun.jit(step, donate_argnums=0).lower(x, x).compile()
    results = compiled(tvmfun.device_put(x), x)
    digest = hashlib.sha256(b"".join(np.asarray(result).tobytes() for result in results)).hexdigest()
    print(counters.compiles, counters.loads, digest, compiled.memory_analysis())
    """
)


def run_step(directory):
    environment = os.environ | {"TVMFUN_CACHE_DIR": str(directory), "TVMFUN_CACHE_MIN_SECONDS": "0"}
    result = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, env=environment, check=True)
    compiles, loads, said = result.stdout.split(maxsplit=2)
    return int(compiles), int(loads), said


@pytest.fixture
def step_in(monkeypatch):
    """The output of that program in this process, with a cache directory but an empty cache in memory."""

    def run(directory):
        monkeypatch.setenv("TVMFUN_CACHE_DIR", str(directory))
        monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
        tvmfun.clear_caches()
        with counted() as events, contextlib.redirect_stdout(io.StringIO()) as output:
            exec(STEP, {})
        return events.compiles, events.loads, output.getvalue().split(maxsplit=2)[2]

    return run


@pytest.mark.slow
@needs_linker
def test_another_process_has_the_same_results_and_the_same_plan(tmp_path, step_in):
    compiles, loads, expected = step_in(tmp_path)
    assert (compiles, loads) == (1, 0) and "temporaries=" in expected
    assert run_step(tmp_path) == (0, 1, expected)


@needs_linker
def test_what_was_stored_in_another_form_is_compiled_again(tmp_path, step_in):
    expected = step_in(tmp_path)
    (entry,) = tmp_path.glob("*.so")
    library, manifest = container.opened(entry.read_bytes())
    assert '"fresh"' in manifest["plan"]
    plans = ({"plan": manifest["plan"].replace('"fresh"', '"other"')}, {"plan": None}, {"name": "0.so"})
    for content in (library, *(container.sealed(library, {**manifest, **plan}) for plan in plans)):
        entry.unlink()  # the library is in use
        entry.write_bytes(content)
        assert step_in(tmp_path) == expected


@needs_linker
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory need Linux")
def test_object_code_does_not_touch_the_disk(tmp_path, compiled_in, monkeypatch):
    # LLVM ends the process if it cannot write it. The entry of the cache is written in its directory.
    make = tempfile.TemporaryDirectory
    monkeypatch.setattr("tvmfun.files.tempfile", SimpleNamespace(TemporaryDirectory=lambda *, dir: make(dir=dir)))
    assert compiled_in(tmp_path) == (1, 0)
    assert compiled_in(tmp_path) == (0, 1)


def test_directories_of_others(tmp_path, compiled_in, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    assert compiled_in(tmp_path, threshold="1000") == (1, 0)


class TestWhoWroteIt:
    """Code is loaded only if nobody else can have put it where it is."""

    @pytest.fixture
    def cache(self, tmp_path, compiled_in):
        directory = tmp_path / "above" / "cache"
        assert compiled_in(directory) == (1, 0)
        assert compiled_in(directory) == (0, 1)
        disk_cache._REFUSED.clear()
        return directory

    @pytest.mark.quick("450", "511")
    @needs_linker
    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
    def test_a_directory_that_others_may_write(self, cache, compiled_in, mode):
        cache.chmod(mode)
        with pytest.warns(errors.PerformanceWarning, match=f"at {cache} is not used.*everybody may write") as caught:
            assert compiled_in(cache) == (1, 0)
            assert compiled_in(cache) == (1, 0)
        assert len(caught) == 1
        cache.chmod(0o755)
        assert compiled_in(cache) == (0, 1)

    @needs_linker
    def test_nothing_is_stored_there_either(self, tmp_path, compiled_in):
        tmp_path.chmod(0o777)
        with pytest.warns(errors.PerformanceWarning, match="everybody may write"):
            assert compiled_in(tmp_path) == (1, 0)
        assert not list(tmp_path.iterdir())

    @needs_linker
    def test_a_directory_above_that_others_may_write(self, cache, compiled_in):
        cache.parent.chmod(0o777)
        with pytest.warns(errors.PerformanceWarning, match=f"everybody may write {cache.parent}\\."):
            assert compiled_in(cache) == (1, 0)
        cache.parent.chmod(0o1777)  # sticky, as /tmp: others cannot replace our directory
        assert compiled_in(cache) == (0, 1)

    @needs_linker
    def test_a_link_to_it_that_others_may_change(self, cache, tmp_path, compiled_in):
        (tmp_path / "open").mkdir()
        (tmp_path / "open" / "link").symlink_to(cache)
        assert compiled_in(tmp_path / "open" / "link") == (0, 1)
        (tmp_path / "open").chmod(0o777)
        with pytest.warns(errors.PerformanceWarning, match="everybody may write"):
            assert compiled_in(tmp_path / "open" / "link") == (1, 0)

    @needs_linker
    def test_a_file_that_others_may_write(self, cache, compiled_in):
        (entry,) = cache.glob("*.so")
        entry.chmod(0o722)
        with pytest.warns(errors.PerformanceWarning, match=f"at {entry} is not used.*everybody may write"):
            compiled_in(cache)
        assert compiled_in(cache) == (0, 1)  # it has been written anew
        assert not entry.stat().st_mode & 0o022

    @needs_linker
    def test_a_group_that_may_write(self, cache, compiled_in, monkeypatch):
        cache.chmod(0o770)
        monkeypatch.setattr(files, "_is_own_group", lambda group, user: True)
        assert compiled_in(cache) == (0, 1)
        monkeypatch.setattr(files, "_is_own_group", lambda group, user: False)
        with pytest.warns(errors.PerformanceWarning, match="group .* may write"):
            assert compiled_in(cache) == (1, 0)

    @needs_linker
    def test_somebody_else(self, cache, compiled_in, monkeypatch):
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
        with pytest.warns(errors.PerformanceWarning, match=f"belongs to user {us}"):
            assert compiled_in(cache) == (1, 0)

    @needs_linker
    def test_a_file_of_somebody_else(self, cache, compiled_in, monkeypatch):
        us, check = os.geteuid(), files._check
        monkeypatch.setattr(
            files,
            "_check",
            lambda path, found, owners, sticky: path.suffix == ".so" and check(path, found, {-1}, sticky),
        )
        with pytest.warns(errors.PerformanceWarning, match=f"belongs to user {us}"):
            assert compiled_in(cache) == (1, 0)

    @needs_linker
    def test_a_link_in_its_place(self, cache, tmp_path, compiled_in):
        (entry,) = cache.glob("*.so")
        entry.rename(tmp_path / "elsewhere.so")
        entry.symlink_to(tmp_path / "elsewhere.so")
        assert compiled_in(cache) == (1, 0)
        assert not entry.is_symlink()

    @needs_linker
    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory need Linux")
    def test_what_was_read_is_what_is_loaded(self, cache, compiled_in, monkeypatch):
        """Whoever replaces the file after it has been read comes too late."""
        read = disk_cache.read_trusted

        def replaced(path):
            content = read(path)
            path.unlink()
            path.write_bytes(b"nonsense")
            return content

        monkeypatch.setattr(disk_cache, "read_trusted", replaced)
        assert compiled_in(cache) == (0, 1)

    @needs_linker
    def test_libraries_without_main(self, cache, compiled_in, tmp_path):
        """The checksum is right, and yet it is compiled again."""
        (entry,) = cache.glob("*.so")
        source = tmp_path / "other.c"
        source.write_text("int other(void) { return 0; }")
        subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "other.so", source], check=True)
        manifest = container.opened(entry.read_bytes())[1]
        entry.unlink()
        entry.write_bytes(container.sealed((tmp_path / "other.so").read_bytes(), manifest))
        entry.chmod(0o700)
        assert compiled_in(cache) == (1, 0)
        assert compiled_in(cache) == (0, 1)


def test_settings_that_make_no_sense(tmp_path, compiled_in, monkeypatch):
    with pytest.raises(errors.ArgumentError, match="TVMFUN_CACHE_MIN_SECONDS"):
        compiled_in(tmp_path, threshold="soon")
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "~/somewhere")
    assert disk_cache.cache_directory() == Path.home() / "somewhere"


class TestInterrupts:
    """Ctrl-C at any time of a compilation is a KeyboardInterrupt, also within what TVM calls, and breaks nothing."""

    X = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")

    @pytest.fixture(autouse=True)
    def heard(self):
        """Hears Ctrl-C also in a background job, which shells start without."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def made(self, n):
        """A function that is compiled in several threads."""

        def f(x):
            y = x
            for i in range(6):
                y = tnp.tanh(y @ x + n) - tnp.mean(y, axis=i % 2, keepdims=True)
            return tnp.sum(y**2)

        return tvmfun.jit(tvmfun.value_and_grad(f))

    @pytest.fixture
    def seconds(self):
        """How long it takes."""
        self.made(0.25)(self.X)
        started = time.perf_counter()
        self.made(0.5)(self.X)
        return time.perf_counter() - started

    def interrupted(self, call, after):
        """Whether the call is interrupted after some seconds, unless it ends before."""
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            call()
            timer.cancel()
            timer.join()
            time.sleep(0.01)  # until the messages have arrived
        except KeyboardInterrupt:
            return True
        return False

    # Python ignores the interrupt of a callback: Hypothesis measures garbage collections, and caches have weak values.
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*gc_callback:pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.filterwarnings("ignore:.*WeakValueDictionary:pytest.PytestUnraisableExceptionWarning")
    def test_at_any_time(self, seconds):
        count = 30
        rng, interrupts = np.random.default_rng(0), 0
        for n in range(4 * count):
            f = self.made(float(n))
            interrupts += self.interrupted(lambda f=f: f(self.X), rng.random() * seconds)
            if interrupts == count:
                break
            if n % 10 == 0:
                value, gradient = f(self.X)
                again = self.made(float(n))(self.X)
                np.testing.assert_array_equal(value, again[0])
                np.testing.assert_array_equal(gradient, again[1])
        assert interrupts == count

    @pytest.mark.slow
    def test_while_other_threads_compile(self, seconds):
        ended, errors_of_others = threading.Event(), []

        def work(i):
            for n in range(1000):
                if ended.is_set():
                    return
                try:
                    assert self.made(n + i / 10)(self.X)[1].shape == (8, 8)
                except BaseException as error:
                    errors_of_others.append(error)

        others = [threading.Thread(target=work, args=(i,)) for i in (1, 2)]
        for thread in others:
            thread.start()
        interrupts = sum(self.interrupted(lambda n=n: self.made(-n)(self.X), 0.3 * seconds) for n in range(5))
        ended.set()
        for thread in others:
            thread.join()
        assert interrupts and not errors_of_others
        assert self.made(-0.125)(self.X)[1].shape == (8, 8)

    @pytest.mark.quick("KeyboardInterrupt")
    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_of_what_tvm_calls(self, monkeypatch, kind):
        tvmfun.clear_caches()
        monkeypatch.setattr("tvmfun.lower.codegen.native.packed", lambda function: (_ for _ in ()).throw(kind()))
        with pytest.raises(kind):
            self.made(0.75)(self.X)
        monkeypatch.undo()
        assert self.made(0.75)(self.X)[1].shape == (8, 8)
