exec(open("/tmp/fz/one.py").read())
from fuzz import asked
m=asked.Meant(case); m.evaluate()
