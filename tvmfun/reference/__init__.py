"""The semantics of every op in NumPy, and a slow evaluator of Programs to check lowering against.

It shares no code with lowering: no fusion, schedules or memory plan. Floats are computed in double precision and each
result is rounded to its dtype in the Program.
"""

from tvmfun.reference.evaluator import Rounding as Rounding
from tvmfun.reference.evaluator import evaluate as evaluate
from tvmfun.reference.evaluator import evaluate_equation as evaluate_equation
from tvmfun.reference.meaning import MEANINGS as MEANINGS

__all__ = ["MEANINGS", "Rounding", "evaluate", "evaluate_equation"]
