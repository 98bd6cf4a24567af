"""Fusion: the equations of a Program grouped into kernels.

Equations are visited from the last to the first. Each joins a kernel of its users if that saves memory traffic and
costs little recomputation. Reshapes are views of their own; only those that add or remove axes of size 1 are fused,
around stacks and slices and for the indices of gathers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush

from tvmfun import dtypes
from tvmfun.core.dims import typical
from tvmfun.core.program import Atom, Literal, Program, Variable
from tvmfun.lower.fusion.device_ops import on_device
from tvmfun.lower.fusion.integer_costs import MOST as MOST_COSTS
from tvmfun.lower.fusion.integer_costs import integer_costs
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.options import PLAIN, WIDENINGS, FusionOptions
from tvmfun.lower.fusion.products import has_one_row, is_product, may_pack, narrow_results
from tvmfun.ops.control import switch
from tvmfun.ops.conv import conv
from tvmfun.ops.dot import dot_general
from tvmfun.ops.index import gather
from tvmfun.ops.pointwise import astype
from tvmfun.ops.reduce import sum as sum_op
from tvmfun.ops.shape import concat, flip, pad, permute_dims, reshape, slice

# The fewest terms per element of a sum with few elements.
_FEW = 64
# Larger kernels save no more memory traffic, and take long to compile.
MAX_EQUATIONS = 48
# The most copies of a shared subexpression in a kernel once everything is inlined.
_MAX_EXPANSION = 400
# Changes of layout that loaders of products can follow, because neighbours stay neighbours along some axis.
_LAYOUT_OPS = (flip, permute_dims)
# Vectors of elements that are at most this far apart are read as fast as vectors of neighbours.
_MOST_APART = 8
# Ops that combine parts.
_JOINS = (concat, pad)
# Kinds of ops that form a kernel each.
_UNFUSABLE_KINDS = ("opaque", "control")
# The most times that a kernel computes each element of an expensive equation.
_MAX_RECOMPUTE = 2
# Functions of a few dozen instructions on GPUs.
_SHORT = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "power")


@dataclass(eq=False)
class _Group:
    """A kernel in the making."""

    members: list[int] = field(default_factory=list)
    core: int | None = None  # the reduction or contraction, if there is one
    closed: bool = False  # whether no other equation may join, as for views and ops of a closed kind
    domain: tuple[int, ...] = ()  # the shape of its results
    expansion: dict[int, int] = field(default_factory=dict)  # copies of each member once everything is inlined
    cost: dict[int, int] = field(default_factory=dict)  # of the formulas of integers around and in each member


class _Fusion:
    """Puts the equations of a Program into groups; equations and results are numbered by position."""

    def __init__(self, program: Program, options: FusionOptions) -> None:
        self.options = options
        self.equations = tuple(map(on_device, program.equations)) if options.is_gpu else program.equations
        self.inputs = set(program.inputs)
        self.producer = {out: i for i, eq in enumerate(self.equations) for out in eq.outputs}
        self.returned = {self.producer[a] for a in program.outputs if a in self.producer}
        self.users: list[list[int]] = [[] for _ in self.equations]
        for i, equation in enumerate(self.equations):
            for j in dict.fromkeys(self.producer[a] for a in equation.inputs if a in self.producer):
                self.users[j].append(i)
        self.groups_of: list[list[_Group]] = [[] for _ in self.equations]
        self.narrow = narrow_results(self.equations)
        self.integer_costs = integer_costs(program)
        self.repetitions: set[int] = set()
        self.components: set[int] = set()
        for i in range(len(self.equations)):
            if self.is_repetition(i):
                self.repetitions.add(i)
            if self.is_component(i):
                self.components.add(i)

    def run(self) -> list[Kernel]:
        for i in reversed(range(len(self.equations))):
            self.assign(i)
        self.drop_barriers()
        groups = dict.fromkeys(group for groups in self.groups_of for group in groups)
        return [self.kernel(group) for group in self.ordered(list(groups))]

    def drop_barriers(self) -> None:
        """Replaces barriers by their arguments: they have no use after fusion, and would keep memory alive."""
        arguments: dict[Atom, Atom] = {}
        for i, equation in enumerate(self.equations):
            (first, *_) = equation.inputs or (None,)
            if equation.op.kind == "barrier" and isinstance(first, Variable) and i not in self.returned:
                arguments[equation.outputs[0]] = source = arguments.get(first, first)
                self.groups_of[i] = []
                if source in self.producer:
                    users = self.users[self.producer[source]]
                    users[:] = dict.fromkeys([*(user for user in users if user != i), *self.users[i]])
        if arguments:
            through = lambda equation: equation._replace(inputs=tuple(arguments.get(a, a) for a in equation.inputs))
            self.equations = tuple(map(through, self.equations))

    # -- choosing the group of an equation ---------------------------------------------------------------------

    def assign(self, i: int) -> None:
        kind = self.equations[i].op.kind
        around = list(dict.fromkeys(group for user in self.users[i] for group in self.groups_of[user]))
        if i in self.repetitions or i in self.components:
            self.repeat(i, around)
        elif kind in ("reduction", "contraction"):
            if not self.joins_as_core(i, around):
                self.start(i)
        elif kind in _UNFUSABLE_KINDS or (self.equations[i].op.view and not self.reshapes_part(i)):
            self.start(i)
        else:
            around, copied = self.recompute(i, around)
            done = copied and not around and i not in self.returned
            if not done and not self.joins(i, around):
                self.start(i)

    def start(self, i: int) -> None:
        op = self.equations[i].op
        group = _Group(domain=self.shape(i))
        group.closed = op.kind in _UNFUSABLE_KINDS or self.equations[i].op.view
        group.core = i if op.kind in ("reduction", "contraction") else None
        self.add(i, group)

    def add(self, i: int, group: _Group) -> None:
        group.members.append(i)
        inside = [user for user in self.users[i] if group in self.groups_of[user]]
        group.expansion[i] = max(1, sum(group.expansion[user] for user in inside))
        group.cost[i] = self.cost_in(group, i)
        self.groups_of[i].append(group)

    def reshapes_part(self, i: int) -> bool:
        """Whether the equation adds or removes axes of size 1 between a part and its whole.

        Such equations occur where parts are stacked along a new axis, where they are taken from one, and in gradients.
        """
        equation = self.equations[i]
        if equation.op is not reshape:
            return False
        (source,) = equation.inputs
        before, after = source.aval.shape, self.shape(i)
        if [n for n in before if n != 1] != [n for n in after if n != 1]:
            return False
        if len(after) > len(before):
            return all(self.equations[user].op in _JOINS or self.is_index(i, user) for user in self.users[i])
        return source in self.producer and self.equations[self.producer[source]].op is slice

    def is_index(self, i: int, user: int) -> bool:
        """Whether the equation is the indices of single elements."""
        equation = self.equations[user]
        is_read = equation.op is gather and equation.inputs[1] in self.equations[i].outputs
        return is_read and self.size(user) <= _MAX_RECOMPUTE * self.size(i)

    def is_component(self, i: int) -> bool:
        """Whether the equation takes elements a few apart, such as ``x[..., 0]``, which readers can do as well."""
        equation = self.equations[i]
        if equation.op is reshape:
            return self.reshapes_part(i) and self.producer.get(equation.inputs[0]) in self.components
        if equation.op is permute_dims:
            return bool(self.users[i]) and all(self.takes_few(user, i) for user in self.users[i])
        if equation.op is not slice:
            return False
        distance = 1
        along_axes = equation.inputs[0].aval.shape, self.shape(i), equation.params["step"]
        for size, taken, step in zip(*map(reversed, along_axes), strict=True):
            if taken != 1:
                return 1 < typical(distance * step) <= _MOST_APART
            distance *= size
        return False

    def takes_few(self, user: int, i: int) -> bool:
        """Whether an equation gathers a small part of a result, such as ``x[:, i]``."""
        equation = self.equations[user]
        takes = equation.op is gather and equation.inputs[0] in self.equations[i].outputs
        return takes and equation.inputs[1] not in self.equations[i].outputs and 4 * self.size(user) <= self.size(i)

    def is_repetition(self, i: int) -> bool:
        """Whether computing the equation again is cheaper than reading its result.

        True of iota and broadcast_to, and of cheap work on these or on smaller arrays, such as a one-hot matrix.
        """
        op, inputs = self.equations[i].op, self.equations[i].inputs
        if op.kind not in ("injective", "pointwise") or not self.is_inexpensive(i) or op is pad:
            return False
        known = self.repetitions if op.kind == "pointwise" else ()
        return all(typical(a.aval.size) < self.size(i) or self.producer.get(a) in known for a in inputs)

    def repeat(self, i: int, around: list[_Group]) -> None:
        """Puts a copy into every group that accepts one; other readers get a stored result."""
        takers = [group for group in around if self.accepts(group, i)]
        for group in takers:
            self.add(i, group)
        if len(takers) < len(around) or i in self.returned or not around:
            self.start(i)

    def cost_in(self, group: _Group, i: int) -> int:
        """The largest sum of costs of integers on a path from an equation to a result of a group."""
        own = self.integer_costs[i]
        around = (group.cost[user] for user in self.users[i] if user in group.cost and user != group.core)
        return own + max(around, default=0)

    def largest_cost(self, group: _Group) -> int:
        """The largest sum of costs of integers on a path in a group."""
        return max(group.cost.values(), default=0)

    def recompute(self, i: int, around: list[_Group]) -> tuple[list[_Group], bool]:
        """Puts copies of a cheap pointwise equation into users if that moves fewer bytes than storing its result.

        Returns:
            The users without a copy, and whether there are copies.
        """
        op = self.equations[i].op
        readers = len(around) + (i in self.returned)
        # Reading a single number is free.
        is_short = self.options.is_gpu and op.name in _SHORT and self.size(i) > 1 and self.nbytes(i) <= 4 * self.size(i)
        if op.kind != "pointwise" or not (is_short or self.is_inexpensive(i)) or readers < 2:
            return around, False
        takers = [group for group in around if self.accepts(group, i)]
        along = [group for group in takers if self.writes_along(group, i)]
        if len(along) > 1:
            self.merge_siblings(along)
            around, takers = ([group for group in groups if group.members] for groups in (around, takers))
        cost = {id(group): self.new_reads(group, i) for group in takers}
        if len(takers) == readers > 1:
            stored = min(cost.values()) + readers * self.nbytes(i)
            # Maps may turn out to compute the operands, too, so GPUs prefer to recompute.
            cores = [self.equations[group.core].op.kind for group in takers if group.core is not None]
            prefers = self.options.is_gpu and "reduction" not in cores
            if before := self.bytes_before(i):  # a product has the value in registers
                stored += self.nbytes(i) - 2 * before
            is_less = sum(cost.values()) < stored + prefers
            chosen = takers if is_less else [g for g in takers if cost[id(g)] == 0]
        else:
            chosen = [group for group in takers if cost[id(group)] == 0]
        if len(chosen) == len(around) == 1:
            return around, False  # an ordinary member, which the group may also store
        for group in chosen:
            self.add(i, group)
        return [group for group in around if group not in chosen], bool(chosen)

    def bytes_before(self, i: int) -> int:
        """The bytes of the product that only this map reads, possibly through other maps; 0 if there is none.

        The product can store the result of the map instead.
        """
        if not self.options.has_epilogues:
            return 0
        for atom in self.equations[i].inputs:
            j = self.producer.get(atom)
            if j is None or self.users[j] != [i] or j in self.returned or self.shape(j) != self.shape(i):
                continue
            if is_product(self.equations[j]):
                return self.nbytes(j)
            if self.equations[j].op.kind == "pointwise" and (before := self.bytes_before(j)):
                return min(before, self.nbytes(j))
        return 0

    def new_reads(self, group: _Group, i: int) -> int:
        """The additional bytes that a group has to read in order to compute an equation itself."""
        members = [self.equations[member] for member in group.members]
        known = {atom for equation in members for atom in (*equation.inputs, *equation.outputs)}
        reads = {a for a in self.equations[i].inputs if isinstance(a, Variable) and a not in known}
        return sum(typical(a.aval.nbytes) for a in reads if self.producer.get(a) not in self.repetitions)

    def joins(self, i: int, around: list[_Group]) -> bool:
        """Adds a pointwise or injective equation to its only user, or to one that also stores the result for others."""
        if not around or (i in self.returned and not any(self.writes_along(group, i) for group in around)):
            return False
        if len(around) == 1 and i not in self.returned:
            if self.accepts(around[0], i):
                self.add(i, around[0])
                return True
            return False
        along = [group for group in around if self.writes_along(group, i) and self.accepts(group, i)]
        if len(along) > 1:
            along = self.merge_siblings(along)
        for group in along:
            if not any(self.reaches(other, group) for other in around if other is not group and other.members):
                self.add(i, group)
                return True
        return False

    def joins_as_core(self, i: int, around: list[_Group]) -> bool:
        """Makes a reduction or contraction the core of the group with all pointwise work on its result.

        Products on GPUs, and sums over columns on CPUs, may absorb one of several groups, and store their result for
        the others.
        """
        is_product_of_gpu = self.options.has_epilogues and is_product(self.equations[i])
        if is_product_of_gpu or (not self.options.is_gpu and self.is_short_sum(i)):
            group = self.map_of_result(i, around)
            if group is not None:
                group.core = i
                self.add(i, group)
                return True
        if is_product_of_gpu:
            return False
        if len(around) != 1 or i in self.returned:
            return False
        (group,) = around
        has_room = self.has_room(group) and len(self.outputs(group)) == 1
        if not (self.writes_along(group, i) and has_room):
            return False
        if self.options.is_gpu and self.shape(i) == () and self.reads_others(group, i):
            return False
        group.core = i
        self.add(i, group)
        return True

    def is_short_sum(self, i: int) -> bool:
        """Whether the equation is a sum over columns with few elements, compared with its input."""
        equation = self.equations[i]
        if equation.op is not sum_op:
            return False
        (terms,) = equation.inputs
        return terms.aval.ndim - 1 not in equation.params["axis"] and _FEW * self.size(i) <= typical(terms.aval.size)

    def map_of_result(self, i: int, around: list[_Group]) -> _Group | None:
        """The first group of maps of a result that does not wait for the other readers of the result."""
        for group in around:
            waits = (self.reaches(other, group) for other in around if other is not group)
            if self.writes_along(group, i) and self.has_room(group) and not any(waits):
                return group
        return None

    def reads_others(self, group: _Group, i: int) -> bool:
        """Whether a group reads results of other groups than ``i``, for which it would have to wait."""
        made = {*group.members, i}
        reads = (self.producer.get(atom, i) for member in group.members for atom in self.equations[member].inputs)
        return not made.issuperset(reads)

    def accepts(self, group: _Group, i: int) -> bool:
        if group.closed or not self.has_room(group):
            return False
        if self.integer_costs[i] and self.cost_in(group, i) > MOST_COSTS:
            return False
        expansion = 0
        for user in self.users[i]:
            if group not in self.groups_of[user]:
                continue
            op = self.equations[user].op
            is_factor = op is dot_general and (
                self.is_widening(i) or self.is_leading_slice(i, user) or self.is_computed_in(i, i, user)
            )
            is_kernel = op is conv and (self.changes_kernel_layout(i, user) or self.is_phase(i, user))
            if op.kind == "contraction" and not is_factor and not is_kernel:
                return False
            if self.feeds_core(group, user) and not all(
                self.is_leading_slice(i, j) or self.is_computed_in(i, user, j) for j in self.products_of(user)
            ):
                return False  # products read arrays
            reads = self.size(i) if op.kind == "reduction" else self.size(user)
            if op.window or (not self.is_inexpensive(i) and reads > _MAX_RECOMPUTE * self.size(i)):
                return False
            if self.feeds_core(group, user) and self.shape(i) == ():
                return False  # a scalar is computed once, not in the innermost loop
            expansion += group.expansion[user]
        return expansion <= _MAX_EXPANSION

    def is_inexpensive(self, i: int) -> bool:
        """Whether an element may be computed more than once."""
        return self.equations[i].op.is_inexpensive(self.equations[i].outputs[0].aval.dtype)

    def changes_kernel_layout(self, i: int, user: int) -> bool:
        """Whether the equation changes the layout of a kernel that a convolution on a GPU can read in any layout."""
        is_kernel = self.equations[user].op is conv and self.equations[user].inputs[0] not in self.equations[i].outputs
        return (
            self.options.has_epilogues
            and is_kernel
            and is_product(self.equations[user])
            and self.equations[i].op in _LAYOUT_OPS
        )

    def is_phase(self, i: int, user: int) -> bool:
        """Whether the equation takes strided elements of a kernel, which a convolution of a CPU packs anyway.

        The phases of the gradient of a strided convolution do that.
        """
        equation = self.equations[i]
        is_kernel = self.equations[user].inputs[0] not in equation.outputs
        is_wide = dtypes.NAMES[equation.outputs[0].aval.dtype] in ("float32", "float64")
        is_along = equation.op is slice and equation.params["step"][-1] == 1
        return not self.options.is_gpu and is_kernel and is_wide and is_along

    def is_leading_slice(self, i: int, user: int) -> bool:
        """Whether the equation is the first part of an array, which a product on a GPU reads without a copy."""
        op, params = self.equations[i].op, self.equations[i].params
        is_first = op is slice and not any(params["start"]) and set(params["step"]) <= {1}
        return is_first and self.options.has_epilogues and is_product(self.equations[user])

    def is_computed_in(self, i: int, factor: int, user: int) -> bool:
        """Whether a product on a CPU computes an equation while it reads a factor, or packs it.

        A product with a single row reads each element of a factor once, but elements of flipped factors one by one.
        """
        if self.options.is_gpu or self.equations[i].op is flip:
            return False
        product, made, read = self.equations[user], *(self.equations[j].outputs[0] for j in (i, factor))
        return has_one_row(product, read) or (self.narrow.issuperset((made, read)) and may_pack(product, read))

    def products_of(self, i: int) -> list[int]:
        """The products that read the result of an equation, or the conversion of a part of it."""
        through = [j for j in self.users[i] if self.equations[i].op is slice and self.is_widening(j)]
        return [j for k in (i, *through) for j in self.users[k] if self.equations[j].op is dot_general]

    def is_widening(self, i: int) -> bool:
        """Whether the equation is a conversion of narrow numbers that a product applies while it reads them."""
        equation = self.equations[i]
        if equation.op is not astype:
            return False
        name = dtypes.NAMES[equation.inputs[0].aval.dtype]
        return name in self.options.widens and equation.params["dtype"] in WIDENINGS[name]

    def writes_along(self, group: _Group, i: int) -> bool:
        """Whether the group can store the result of the equation along with its own."""
        users = (user for user in self.users[i] if group in self.groups_of[user])
        same_index = all(self.is_pointwise_over(group.domain, user) for user in users)
        return group.core is None and not group.closed and group.domain == self.shape(i) and same_index

    def is_pointwise_over(self, domain: tuple[int, ...], i: int) -> bool:
        return self.equations[i].op.kind == "pointwise" and self.shape(i) == domain

    def feeds_core(self, group: _Group, user: int) -> bool:
        return group.core is not None and user <= group.core

    def has_room(self, group: _Group) -> bool:
        return self.computed(group) < MAX_EQUATIONS

    def computed(self, group: _Group) -> int:
        """The number of equations of a group, except those that only take elements a few apart."""
        return sum(i not in self.components for i in group.members)

    # -- merging -----------------------------------------------------------------------------------------------

    def merge_siblings(self, groups: list[_Group]) -> list[_Group]:
        """Merges groups over the same domain into the first one, unless one depends on another."""
        first, *others = groups
        kept = [first]
        for other in others:
            small = len(first.members) + len(other.members) <= MAX_EQUATIONS
            small = small and self.largest_cost(first) + self.largest_cost(other) <= MOST_COSTS
            if small and not self.waits(first, other) and not self.waits(other, first):
                self.merge(first, other)
            else:
                kept.append(other)
        return kept

    def merge(self, into: _Group, group: _Group) -> None:
        for i in group.members:
            # The last group of a duplicated equation is the one that stores it, and must stay last.
            kept = [into if home is group else home for home in self.groups_of[i]]
            self.groups_of[i] = list(dict.fromkeys(reversed(kept)))[::-1]
            into.expansion[i] = group.expansion[i] + into.expansion.get(i, 0)
            into.cost[i] = max(group.cost[i], into.cost.get(i, 0))
        into.members = list(dict.fromkeys([*into.members, *group.members]))
        group.members = []

    def waits(self, late: _Group, early: _Group) -> bool:
        """Whether ``late`` needs results of ``early`` through a third group, or at other indices."""
        return self.reaches(early, late, same_index_counts=False)

    def reaches(self, source: _Group, target: _Group, same_index_counts: bool = True) -> bool:
        """Whether ``target`` depends on ``source``: a group starts after all groups whose results it reads."""
        seen, stack = {source}, [source]
        groups_of, users = self.groups_of, self.users  # half of the time of fusion is spent here
        while stack:
            group = stack.pop()
            for i in group.members:
                # Readers of a duplicated equation use the copy stored by its last group, unless they recompute it.
                if groups_of[i][-1] is not group:
                    continue
                for user in users[i]:
                    for home in groups_of[user]:
                        if home in groups_of[i]:
                            continue
                        if home is target:
                            in_step = group is source and self.is_pointwise_over(target.domain, user)
                            if same_index_counts or not in_step:
                                return True
                        elif home not in seen:
                            seen.add(home)
                            stack.append(home)
        return False

    # -- the result --------------------------------------------------------------------------------------------

    def outputs(self, group: _Group) -> list[int]:
        return [i for i in group.members if self.groups_of[i][-1] is group and self.is_stored(i)]

    def is_stored(self, i: int) -> bool:
        """Whether the caller or a group that does not compute the result needs it."""
        return i in self.returned or self.is_read(i)

    def is_read(self, i: int) -> bool:
        """Whether a group that does not compute the result reads it."""
        return any(home not in self.groups_of[i] for user in self.users[i] for home in self.groups_of[user])

    def ordered(self, groups: list[_Group]) -> list[_Group]:
        """Sorts the groups so that each comes after the groups whose results it reads.

        Updates come as early as possible: their arguments are still in a cache, and are free afterwards.
        """
        home = {i: group for group in groups for i in self.outputs(group)}
        reads = {group: {atom for i in group.members for atom in self.equations[i].inputs} for group in groups}
        needs = {}
        for group in groups:
            known = {self.producer[atom] for atom in reads[group] if atom in self.producer}
            needs[group] = {home[i] for i in known.difference(group.members)}
        replaced = {group: self.replaced(group, reads[group]) for group in groups}
        # Scalars come first, because updates need them.
        is_early = lambda group: replaced[group] or all(self.size(i) == 1 for i in self.outputs(group))
        groups = sorted(groups, key=lambda group: (not is_early(group), max(group.members)))
        position = {group: i for i, group in enumerate(groups)}
        readers: dict[Atom, list[_Group]] = {}
        for group in groups:
            for atom in reads[group].intersection(self.inputs):
                readers.setdefault(atom, []).append(group)
        for group in groups:  # an input is overwritten after all other groups have read it
            others = (other for atom in replaced[group] for other in readers[atom])
            needs[group].update(g for g in others if not replaced[g] or position[g] < position[group])
        # Among the ready groups, the first in the order of the Program: its results are needed first.
        order = TopologicalSorter({position[group]: {position[g] for g in waited} for group, waited in needs.items()})
        order.prepare()
        ready, result = list(order.get_ready()), []
        heapify(ready)
        while ready:
            first = heappop(ready)
            result.append(groups[first])
            order.done(first)
            for following in order.get_ready():
                heappush(ready, following)
        return result

    def replaced(self, group: _Group, reads: set[Atom]) -> set[Atom]:
        """The inputs of the Program that a group probably writes its results over, if no other group needs them."""
        outputs = self.outputs(group)
        if any(self.is_read(i) for i in outputs):
            return {atom for i in outputs for atom in self.carried(i, group, reads)}
        kinds = {self.equations[i].outputs[0].aval for i in outputs if i in self.returned}
        return {atom for atom in reads.intersection(self.inputs) if atom.aval in kinds}

    def carried(self, i: int, group: _Group, reads: set[Atom]) -> set[Atom]:
        """Inputs of the Program that a conditional may overwrite with results of ``i``: only this group reads them."""
        if len(self.users[i]) != 1 or i in self.returned:
            return set()
        (user,) = self.users[i]
        aval = self.equations[i].outputs[0].aval
        outputs = self.equations[user].outputs if self.equations[user].op is switch else ()
        if user not in self.returned or all(out.aval != aval for out in outputs):
            return set()
        readers = lambda atom: (j for j, equation in enumerate(self.equations) if atom in equation.inputs)
        same_type = (atom for atom in reads.intersection(self.inputs) if atom.aval == aval)
        return {atom for atom in same_type if all(self.groups_of[j] == [group] for j in readers(atom))}

    def kernel(self, group: _Group) -> Kernel:
        members = sorted(group.members)
        inside = {out for i in members for out in self.equations[i].outputs}
        if group.closed:  # one parameter per argument, even if two arguments are the same
            inputs = self.equations[members[0]].inputs
        else:
            reads = dict.fromkeys(a for i in members for a in self.equations[i].inputs if a not in inside)
            inputs = tuple(a for a in reads if not isinstance(a, Literal))
        outputs = tuple(out for i in sorted(self.outputs(group)) for out in self.equations[i].outputs)
        return Kernel(tuple(self.equations[i] for i in members), inputs, outputs)

    def shape(self, i: int) -> tuple[int, ...]:
        return self.equations[i].outputs[0].aval.shape

    def nbytes(self, i: int) -> int:
        """The bytes of a result, with typical values for dynamic sizes."""
        return typical(self.equations[i].outputs[0].aval.nbytes)

    def size(self, i: int) -> int:
        """The number of elements of a result, with typical values for dynamic sizes."""
        return typical(self.equations[i].outputs[0].aval.size)


def fuse(program: Program, options: FusionOptions = PLAIN) -> list[Kernel]:
    """Returns the kernels of a Program in an order in which they can run.

    Args:
        program: without calls. Dead code in it, which texts and rewrites may have, gets no kernel.
        options: :data:`CPU`, :data:`GPU`, or :data:`PLAIN` for no target in particular.
    """
    return _Fusion(program.without_dead_code(), options).run()
