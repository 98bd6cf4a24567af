"""The product of a tile of a matrix product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from tvm import ir, tirx
from tvm.tirx import Stmt

from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr, Size
from tvmfun.lower.tir.llvm_text import PREFIX, type_of
from tvmfun.lower.tir.micro_kernels.text import call, fetch, function, number, offset_by, order_of
from tvmfun.lower.tir.walk import called

# The terms that the innermost loop takes per iteration, if an outer loop fetches rows.
_UNROLLED = 4
#: The bytes of a cache line.
LINE_BYTES = 64
#: The intrinsic that loads some elements of a vector.
MASKED = "llvm.masked.load"


@dataclass(frozen=True)
class Terms:
    """A loop over terms of a sum: its steps, and the elements from one step to the next in both factors.

    The outermost loop has its steps as an argument of the function, and ``count`` 0.
    """

    count: int
    left: int
    right: int


@dataclass(frozen=True)
class Next:
    """The distances from one tile to the next, in elements: of both factors, the sums, and the fetched rows."""

    left: int
    right: int
    sums: int
    fetched: int = 0


@dataclass(frozen=True)
class TileProduct:
    """The product of some rows and columns: ``sums[i, j] = sum(left[i, k] * right[k, j] for k in terms)``.

    Args:
        bits: the size of an element, a float, in bits.
        rows, columns: the shape of the tile.
        lanes: the elements of a vector.
        right_columns: the columns that the right factor has in memory, including padding; others are 0.
        left_row: the elements from one row of the left factor to the next.
        sums_row: the elements from one row of the sums in memory to the next; None if each vector of columns has
            memory of its own, with rows of one vector.
        adds: whether the function may add to the sums in memory instead.
        terms: the loops over the terms, the outermost first.
        ahead: the steps of the innermost loop by which rows of the right factor are fetched before they are read.
        following: the distances between several tiles, whose number is an argument; None if there is one tile.
        fetched_rows: the number of rows of the left factor of which each step of the loop around the innermost one
            fetches a cache line; their first element is an argument.
        beside: the distance in columns to a later panel, whose row each step fetches into L2; 0 for none.
    """

    bits: int
    rows: int
    columns: int
    lanes: int
    right_columns: int
    left_row: int
    sums_row: int | None
    adds: bool
    terms: tuple[Terms, ...]
    ahead: int = 0
    following: Next | None = None
    fetched_rows: int = 0
    beside: int = 0

    @property
    def vectors(self) -> int:
        """The number of vectors in a row of the tile."""
        return build.ceil_div(self.columns, self.lanes)

    @property
    def name(self) -> str:
        """The name of the function."""
        terms = _joined(map(astuple, self.terms))
        shape = f"{self.bits}.{self.rows}.{self.columns}.{self.lanes}.{self.right_columns}.{self.left_row}"
        sums_row = "" if self.sums_row is None else self.sums_row
        following = "" if self.following is None else _joined([astuple(self.following)])
        loops = f"{terms}.{self.ahead}.{following}.{self.fetched_rows}.{self.beside}"
        return f"{PREFIX}product.{shape}.{sums_row}.{int(self.adds)}.{loops}"

    @classmethod
    def of_name(cls, fields: Sequence[str]) -> TileProduct:
        """The function of a name, from the fields after its kind."""
        *shape, sums_row, adds, terms, ahead, following, fetched_rows, beside = fields
        own_row = int(sums_row) if sums_row else None
        loops = tuple(Terms(*numbers) for numbers in _split(terms))
        after = next((Next(*numbers) for numbers in _split(following)), None)
        fetched = int(fetched_rows), int(beside)
        return cls(*map(int, shape), own_row, adds == "1", loops, int(ahead), after, *fetched)

    def call(
        self,
        sums: Sequence[Expr],
        left: Expr,
        right: Expr,
        count: Size,
        adds: Expr | None = None,
        tiles: Size = 1,
        fetched: Size | Expr = 0,
    ) -> Stmt:
        """The call of the function.

        Args:
            sums: the load of the first element of the tile, or of each vector of columns.
            left: the load of the first element of the left factor.
            right: the load of the first element of the right factor.
            count: the steps of the outermost loop.
            adds: whether to add to the sums in memory, if the function may.
            tiles: the number of tiles.
            fetched: the distance in elements from the first one of the left factor to the first one that is fetched.
        """
        separate = self.sums_row is None
        if len(sums) != (self.vectors if separate else 1) or (separate and (self.adds or self.following is not None)):
            raise AssertionError(f"{self.name}: {len(sums)} addresses of sums")
        numbers = [number(count, "int32"), *([number(adds, "int32")] if self.adds else [])]
        numbers += [] if self.following is None else [number(tiles, "int32")]
        numbers += [number(fetched, "int64") * (self.bits // 8)] if self.fetched_rows else []
        return call(self.name, *map(tirx.address_of, (*sums, left, right)), *numbers)

    def definition(self) -> str:
        """The function."""
        return _Product(self).text()


def is_product(call: ir.Call) -> bool:
    """Whether a call is one of a product's micro-kernel."""
    return called(call) == "tirx.call_extern" and str(call.args[0].value).startswith(f"{PREFIX}product.")


class _Product:
    """Writes the function of a product: loops around one step, in which each element of a column meets all rows.

    The sums after a step are ``%new{k}``, and those at the start of a step of loop ``l`` are ``%sum{l}.{k}``.
    """

    def __init__(self, product: TileProduct) -> None:
        self.product = product
        self.item, self.type = product.bits // 8, type_of(f"float{product.bits}")
        self.vector = type_of(f"float{product.bits}x{product.lanes}")
        self.all = range(product.rows * product.vectors)
        self.last = len(product.terms) - 1
        # With a loop per cache line of fetched rows, the ends of the innermost loop take a noticeable share of the
        # time.
        self.unrolled = _UNROLLED if product.fetched_rows and product.terms[-1].count % _UNROLLED == 0 else 1

    def text(self) -> str:
        """The definition."""
        product = self.product
        sums = ["sums"] if product.sums_row is not None else [f"sums{j}" for j in range(product.vectors)]
        pointers = [*sums, "left", "right"]
        moves = self._moves()
        parameters = ", ".join(f"ptr %{name}.first" if name in moves else f"ptr %{name}" for name in pointers)
        parameters += ", i32 %count"
        lines = ["entry:", "  br label %tile", "tile:"]
        if moves:
            lines.append("  %number = phi i32 [0, %entry], [%number.next, %tile.end]")
            lines += [f"  %{name} = phi ptr [%{name}.first, %entry], [%{name}.next, %tile.end]" for name in moves]
            if product.fetched_rows:
                lines.append("  %fetched = phi i64 [%fetched.first, %entry], [%fetched.next, %tile.end]")
        lines += ["  br label %loop0", *self._heads(), *self._steps(), *self._ends()]
        if product.adds:
            parameters += ", i32 %adds"
            lines += ["  %is.later = icmp ne i32 %adds, 0", "  br i1 %is.later, label %later, label %store", "later:"]
            lines += [*self._added(), "  br label %store", "store:"]
            lines += [f"  %all{k} = phi {self.vector} [%new{k}, %end0], [%both{k}, %later]" for k in self.all]
        lines += self._stored()
        if moves:
            parameters += ", i32 %tiles"
            parameters += ", i64 %fetched.first" if product.fetched_rows else ""
            lines += ["  br label %tile.end", "tile.end:", "  %number.next = add nuw nsw i32 %number, 1"]
            lines += [offset_by(f"{name}.next", name, offset) for name, offset in moves.items()]
            if product.fetched_rows:
                lines.append(f"  %fetched.next = add i64 %fetched, {product.following.fetched * self.item}")
            lines += ["  %more.tiles = icmp slt i32 %number.next, %tiles"]
            lines += ["  br i1 %more.tiles, label %tile, label %done", "done:"]
        elif product.fetched_rows:
            parameters += ", i64 %fetched"
        return function(product.name, parameters, "\n".join([*lines, "  ret i32 0"]))

    def _moves(self) -> dict[str, int]:
        """The bytes by which pointers move from one tile to the next, if there are several."""
        following = self.product.following
        if following is None:
            return {}
        return {name: getattr(following, name) * self.item for name in ("left", "right", "sums")}

    def _heads(self) -> list[str]:
        """The starts of all loops."""
        lines = []
        for loop in range(self.last + 1):
            before = f"loop{loop - 1}" if loop else "tile"
            lines.append(f"loop{loop}:")
            lines.append(self._phi(loop, "i32", "step", "0", before))
            for side in ("left", "right"):
                lines.append(self._phi(loop, "ptr", side, f"%{side}.{loop - 1}" if loop else f"%{side}", before))
            for k in self.all:
                start = f"%sum{loop - 1}.{k}" if loop else "zeroinitializer"
                lines.append(f"  %sum{loop}.{k} = phi {self.vector} [{start}, %{before}], [%new{k}, %next{loop}]")
            if loop == self.last - 1:
                lines += self._fetched_rows(f"left.{loop}")
            if loop < self.last:
                lines.append(f"  br label %loop{loop + 1}")
        return lines

    def _fetched_rows(self, left: str) -> list[str]:
        """Fetches a cache line of each row that is to be fetched."""
        rows, step = range(self.product.fetched_rows), self.product.left_row * self.item
        lines = [offset_by("fetched.at", left, "%fetched")] if rows else []
        return lines + [line for i in rows for line in fetch(f"fetched.row{i}", "fetched.at", i * step)]

    def _fetched_beside(self, right: str) -> list[str]:
        """Fetches a row of a later panel into L2; the prefetcher does not, because few of its rows are on one page."""
        start, end = (columns * self.item for columns in (self.product.beside, self.product.columns))
        return [
            line
            for offset in range(0, end, LINE_BYTES)
            for line in fetch(f"{right}.beside{offset}", right, start + offset, level=2)
        ]

    def _phi(self, loop: int, kind: str, name: str, start: str, before: str) -> str:
        return f"  %{name}.{loop} = phi {kind} [{start}, %{before}], [%{name}.{loop}.next, %next{loop}]"

    def _steps(self) -> list[str]:
        """The products of one term, or of as many as the innermost loop takes per iteration."""
        lines = [line for number in range(self.unrolled) for line in self._step(number)]
        return [*lines, f"  br label %next{self.last}"]

    def _step(self, number: int) -> list[str]:
        """The products of one of the terms of an iteration."""
        product, lanes, last = self.product, self.product.lanes, self.last
        own, terms = f".{number}", product.terms[-1]
        lines = []
        for j in range(product.vectors):
            at = (number * terms.right + j * lanes) * self.item
            lines.append(offset_by(f"right.at{j}{own}", f"right.{last}", at))
            lines.append(f"  %factor{j}{own} = {self._load(f'%right.at{j}{own}', product.right_columns - j * lanes)}")
            if product.ahead:
                distance = product.ahead * terms.right * self.item
                lines += fetch(f"right.ahead{j}{own}", f"right.at{j}{own}", distance)
        if product.beside:
            lines += self._fetched_beside(f"right.at0{own}")
        before = f"sum{last}." if number == 0 else f"after{number - 1}."
        after = "new" if number == self.unrolled - 1 else f"after{number}."
        for i in range(product.rows):
            lines += [
                offset_by(f"left.at{i}{own}", f"left.{last}", (number * terms.left + i * product.left_row) * self.item),
                f"  %element{i}{own} = load {self.type}, ptr %left.at{i}{own}, align {self.item}",
                f"  %lane{i}{own} = insertelement {self.vector} poison, {self.type} %element{i}{own}, i64 0",
                f"  %row{i}{own} = shufflevector {self.vector} %lane{i}{own}, {self.vector} poison, "
                f"{order_of([0] * lanes)}",
            ]
            for j in range(product.vectors):
                k = i * product.vectors + j
                factors = (f"{self.vector} %{name}" for name in (f"row{i}{own}", f"factor{j}{own}", f"{before}{k}"))
                lines.append(
                    f"  %{after}{k} = call {self.vector} @llvm.fmuladd.v{lanes}f{product.bits}({', '.join(factors)})"
                )
        return lines

    def _load(self, pointer: str, size: int) -> str:
        """The load of a vector; only some elements may exist."""
        lanes, item = self.product.lanes, self.item
        if size >= lanes:
            return f"load {self.vector}, ptr {pointer}, align {item}"
        mask = f"<{lanes} x i1> <{', '.join(f'i1 {int(lane < size)}' for lane in range(lanes))}>"
        arguments = f"ptr align {item} {pointer}, {mask}, {self.vector} zeroinitializer"
        return f"call {self.vector} @{MASKED}.v{lanes}f{self.product.bits}.p0({arguments})"

    def _ends(self) -> list[str]:
        """The ends of all loops, from the innermost outwards."""
        lines = []
        for loop in range(self.last, -1, -1):
            terms, count = self.product.terms[loop], self.unrolled if loop == self.last else 1
            lines += [
                f"next{loop}:",
                f"  %step.{loop}.next = add nuw nsw i32 %step.{loop}, {count}",
                offset_by(f"left.{loop}.next", f"left.{loop}", count * terms.left * self.item),
                offset_by(f"right.{loop}.next", f"right.{loop}", count * terms.right * self.item),
                f"  %more.{loop} = icmp slt i32 %step.{loop}.next, {terms.count if loop else '%count'}",
                f"  br i1 %more.{loop}, label %loop{loop}, label %end{loop}",
                f"end{loop}:",
                *([f"  br label %next{loop - 1}"] if loop else []),
            ]
        return lines

    def _at(self, k: int) -> tuple[str, int, int]:
        """The pointer and the offset in bytes of the sums of a vector, and their number."""
        product = self.product
        i, j = divmod(k, product.vectors)
        if product.sums_row is None:
            return f"sums{j}", i * product.lanes * self.item, product.lanes
        size = min(product.lanes, product.columns - j * product.lanes)
        return "sums", (i * product.sums_row + j * product.lanes) * self.item, size

    def _added(self) -> list[str]:
        """Adds the sums in memory to the sums in registers."""
        lines, lanes = [], self.product.lanes
        for k in self.all:
            pointer, offset, size = self._at(k)
            part = f"<{size} x {self.type}>"
            lines.append(offset_by(f"earlier.at{k}", pointer, offset))
            lines.append(f"  %earlier{k} = load {part}, ptr %earlier.at{k}, align {self.item}")
            if size < lanes:
                order = order_of([*range(size), *[0] * (lanes - size)])
                lines.append(f"  %padded{k} = shufflevector {part} %earlier{k}, {part} poison, {order}")
            name = "padded" if size < lanes else "earlier"
            lines.append(f"  %both{k} = fadd {self.vector} %{name}{k}, %new{k}")
        return lines

    def _stored(self) -> list[str]:
        lines = []
        for k in self.all:
            pointer, offset, size = self._at(k)
            part, value = f"<{size} x {self.type}>", f"%{'all' if self.product.adds else 'new'}{k}"
            lines.append(offset_by(f"sums.at{k}", pointer, offset))
            if size < self.product.lanes:
                order = order_of(range(size))
                lines.append(f"  %part{k} = shufflevector {self.vector} {value}, {self.vector} poison, {order}")
                value = f"%part{k}"
            lines.append(f"  store {part} {value}, ptr %sums.at{k}, align {self.item}")
        return lines


def _joined(groups: Iterable[Sequence[int]]) -> str:
    return "__".join("_".join(str(int(number)) for number in group) for group in groups)


def _split(text: str) -> list[list[int]]:
    return [[*map(int, group.split("_"))] for group in text.split("__") if group]
