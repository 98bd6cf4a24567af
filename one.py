import sys
sys.argv=["x"]+sys.argv[1:]
seed,x64,check=int(sys.argv[1]),sys.argv[2],sys.argv[3]
sys.argv = ["fuzz_jax.py", "--x64", x64, "--out", "/dev/null", "--count", "0"]
exec(open("/tmp/fz/fuzz2.py").read().split("if A.only is not None:")[0])
import re
from fuzz.case import Case
from fuzz import compare as C, shrink as S
p=make(seed); st=[m.groups() for m in re.finditer(r"    (v\d+) = (.*)\n", p["src"])]
case=Case(dict(zip("abc", p["args"])), tuple(st), tuple(p["outs"]), check)
