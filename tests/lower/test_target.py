import os

import pytest

import tvmfun
from tvmfun import errors
from tvmfun.lower import target as targets


def test_the_host_is_known_to_the_compiler():
    host = targets.host()
    assert host.kind.name == "llvm"
    assert host.attrs["mcpu"] not in ("", "generic")
    assert int(host.attrs["num-cores"]) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", [None, "cpu", "llvm"])
def test_names_of_the_host(name):
    assert targets.resolve(name) is targets.host()


def test_gpus_have_the_host_beside_them():
    target = targets.resolve({"kind": "cuda", "arch": "sm_90"})
    assert target.kind.name == "cuda"
    assert str(target.host) == str(targets.host())


@pytest.mark.skipif(tvmfun.devices("cuda") != [], reason="the architecture is that of the GPU here")
@pytest.mark.parametrize("target", ["cuda", {"kind": "cuda"}])
def test_a_gpu_that_is_not_here_needs_an_architecture(target):
    with pytest.raises(errors.TargetError, match=r"needs its architecture, got .*Try {\"kind\": \"cuda\", \"arch\""):
        targets.resolve(target)


@pytest.mark.parametrize("target", ["quantum", {"kind": "cuda", "arch": 3}, {"arch": "sm_90"}, 7])
def test_what_is_no_target(target):
    with pytest.raises(errors.TargetError, match=r"\[target\] TVM cannot make a target of it, got .*Try"):
        targets.resolve(target)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("c", "the kind must be llvm or cuda"),
        ("vulkan", "the kind must be llvm or cuda"),
        ({"kind": "cuda", "arch": "sm_1"}, "no such GPU architecture"),
        ({"kind": "llvm", "mcpu": "nope"}, "LLVM knows no such processor"),
    ],
)
def test_targets_that_nothing_here_compiles_for(target, message):
    with pytest.raises(errors.TargetError, match=message):
        targets.resolve(target)
