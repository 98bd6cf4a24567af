"""The ways to call each op, and what NumPy says about them: the tables that the tests of the registry walk."""

from op_cases import attention, basic, cumulative, decompositions, index, pointwise
from op_cases.case import Case

CASES: dict[str, list[Case]] = {
    **attention.CASES,
    **basic.CASES,
    **pointwise.CASES,
    **index.CASES,
    **cumulative.CASES,
    **decompositions.CASES,
}
