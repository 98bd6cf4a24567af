"""Signals that come while TVM calls back are handled when it has returned."""

import signal
import threading

import pytest

from tvmfun.lower.interrupts import held_interrupts


@pytest.fixture
def handler():
    """The default handler, whatever the tests were started with."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_comes_at_the_end(handler):
    done = []
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("after it")
    assert done == ["after it"]
    assert signal.getsignal(signal.SIGINT) is handler
    with held_interrupts():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_within_does_not_hide_it(handler):
    with pytest.raises(KeyboardInterrupt) as caught, held_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("something else")
    assert isinstance(caught.value.__context__, ValueError)
    assert signal.getsignal(signal.SIGINT) is handler


def test_within_another(handler):
    done = []
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
        done.append("the inner one has told the outer one")
    assert len(done) == 1


def test_a_handler_of_ones_own_is_called_once(handler):
    calls = []
    signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    with held_interrupts():
        signal.raise_signal(signal.SIGINT)
        assert calls == []
    assert calls == [signal.SIGINT]


@pytest.mark.parametrize("choice", [signal.SIG_IGN, signal.SIG_DFL], ids=["ignored", "default"])
def test_what_python_does_not_handle_stays(handler, choice):
    signal.signal(signal.SIGINT, choice)
    with held_interrupts():
        assert signal.getsignal(signal.SIGINT) is choice


def test_other_threads_hear_no_signals(handler):
    seen = []

    def run():
        with held_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [handler]
