"""Control flow: loops and branches around Programs, compiled as loops and branches.

Their Programs are closed: values that a body captures are passed to the op, before its other arguments. Every transform
of a loop is another loop, around a transformed body, and every transform of a branch is another branch.
"""

from tvmfun.ops.control.branches import closed_branches as closed_branches
from tvmfun.ops.control.branches import switch as switch
from tvmfun.ops.control.closed_programs import closed as closed
from tvmfun.ops.control.closed_programs import closing as closing
from tvmfun.ops.control.loops import loop as loop
from tvmfun.ops.control.operands import LoopOperands as LoopOperands
from tvmfun.ops.control.operands import run_loop as run_loop
