"""Runs the programs of many seeds: ``python -m fuzz --seeds 0:100 --x64``.

Each line of output is a program that differs, or that a rule explains; the last one counts. With ``--shrink``, programs
that differ are made small, and written as tests into the folder ``--tests``. Programs of odd seeds run in parallel
loops, however little these do. A crash is found by ``--isolated``, which runs seeds in child processes and says which
seed ended one.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

_PER_CHILD, _SECONDS = 50, 300


def main() -> int:
    """Runs the programs of the seeds given on the command line."""
    parser = argparse.ArgumentParser("fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="FIRST:LAST, or one seed")
    parser.add_argument("--x64", action="store_true", help="with 64-bit numbers")
    parser.add_argument("--shrink", type=int, default=0, help="steps by which a program that differs is made smaller")
    parser.add_argument("--tests", type=Path, help="a folder for tests of what differs")
    parser.add_argument("--isolated", action="store_true", help="in child processes, which may crash")
    parser.add_argument("--show", action="store_true", help="print each program")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no program after this many minutes")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    report = _children(seeds, options) if options.isolated else _here(seeds, options)
    print(json.dumps(dict(sorted(report.items()))))
    return 1 if report["different"] or report["crashed"] else 0


def _here(seeds: range, options: argparse.Namespace) -> collections.Counter:
    os.environ.setdefault("TVMFUN_CACHE_DIR", "")
    os.environ.setdefault("TVMFUN_NUM_THREADS", "2")
    import jax
    from support.parallel import parallel_loops

    import tvmfun
    from fuzz import asked, compare, grammar, shrink
    from tvmfun.core.op import REGISTRY

    report: collections.Counter = collections.Counter()
    start = time.monotonic()
    for count, seed in enumerate(seeds):
        if time.monotonic() - start > 60 * options.minutes:
            break
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        case = grammar.program(seed, options.x64)
        print(json.dumps({"seed": seed}), flush=True)
        if case is None:
            report["empty"] += 1
            continue
        if options.show:
            print(case.text(), case.check, flush=True)
        loops = parallel_loops if seed % 2 else nullcontext
        with loops():
            seen = compare.compare(case)
        if seen is None:
            report["alike"] += 1
        elif seen.because:
            report[seen.because] += 1
        else:
            report["different"] += 1
        if seen is not None:
            about = {"seed": seed, "check": case.check, "what": seen.what, "because": seen.because}
            if seen.because is None and options.shrink:
                faulthandler.dump_traceback_later(4 * _SECONDS, exit=True)
                with loops():
                    case = shrink.shrink(case, most=options.shrink)
                about["program"] = case.text()
                if options.tests:
                    options.tests.mkdir(parents=True, exist_ok=True)
                    name = f"seed_{seed}{'_x64' * options.x64}"
                    (options.tests / f"test_{name}.py").write_text(case.as_test(name, f"{seen.what[:90]}."))
            print(json.dumps(about), flush=True)
        faulthandler.cancel_dump_traceback_later()
        if count % 30 == 29:
            jax.clear_caches()
            tvmfun.clear_caches()
    print(json.dumps({"reached": sorted(asked.REACHED), "of": len(REGISTRY)}), flush=True)
    return report


def _children(seeds: range, options: argparse.Namespace) -> collections.Counter:
    report: collections.Counter = collections.Counter()
    more = [f"--shrink={options.shrink}", *(["--x64"] if options.x64 else []), *(["--show"] if options.show else [])]
    more += [f"--tests={options.tests}"] if options.tests else []
    start, seed = time.monotonic(), seeds.start
    while seed < seeds.stop and time.monotonic() - start < 60 * options.minutes:
        stop = min(seed + _PER_CHILD, seeds.stop)
        command = [sys.executable, "-m", "fuzz", f"--seeds={seed}:{stop}", *more]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
        for line in lines[:-1]:
            if "what" in line:
                print(json.dumps(line), flush=True)
        if child.returncode in (0, 1) and lines and "seed" not in lines[-1]:
            report.update(lines[-1])
            seed = stop
            continue
        last = max((line["seed"] for line in lines if "seed" in line), default=seed)
        print(
            json.dumps({"seed": last, "what": f"the process ended with {child.returncode}", "because": None}),
            flush=True,
        )
        report["crashed"] += 1
        # Programs before the crash are counted by running them again.
        if last > seed:
            again = subprocess.run([*command[:3], f"--seeds={seed}:{last}", *more], stdout=subprocess.PIPE, text=True)
            report.update(json.loads(again.stdout.splitlines()[-1]))
        seed = last + 1
    return report


if __name__ == "__main__":
    sys.exit(main())
