"""The meaning of every op in NumPy, and a slow evaluator of Programs that lowering is checked against.

It shares nothing with lowering: no fusion, no schedules, no memory plan. Floats are computed in double precision and
each result is rounded to the dtype that the Program says.
"""

from tvmfun.reference.evaluator import Rounding as Rounding
from tvmfun.reference.evaluator import evaluate as evaluate
from tvmfun.reference.evaluator import evaluate_equation as evaluate_equation
from tvmfun.reference.meaning import MEANINGS as MEANINGS

__all__ = ["MEANINGS", "Rounding", "evaluate", "evaluate_equation"]
