"""Evaluation of a syntax tree: operators become calls of their translations, functions are inlined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax, random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ProgramError, TvmfunError
from tvmfun.interop.layouts import ChannelsLast, channels_first
from tvmfun.interop.relay import syntax
from tvmfun.interop.relay.metadata import CONSTANT, Metadata
from tvmfun.interop.relay.operators import TRANSLATIONS, Translation, check_sizes, read_attributes, reason_left_out
from tvmfun.interop.relay.source import Source
from tvmfun.typing import Key

#: The most calls of operators and functions: small functions that call each other can ask for any number.
MOST_CALLS = 50_000
#: The most arrays in a tuple: tuples that share their fields can be of any size.
MOST_FIELDS = 4096
#: The most levels of tuples in a tuple.
MOST_LEVELS = 16

#: Errors of Python that compositions raise for arguments of a wrong kind.
_OF_PYTHON = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotImplementedError)


class Fields(tuple):
    """A tuple of the program, which knows how many arrays and levels it has."""

    count: int
    levels: int


def made_tuple(values: Sequence[Any]) -> Fields:
    """The tuple of some values."""
    result = Fields(values)
    result.count = sum(value.count if isinstance(value, Fields) else 1 for value in values)
    result.levels = 1 + max((value.levels for value in values if isinstance(value, Fields)), default=0)
    return result


def plain(value: Any) -> Any:
    """A value with Python's tuples, for functions that take trees."""
    return tuple(map(plain, value)) if isinstance(value, tuple) else tnp.asarray(channels_first(value))


def from_plain(value: Any) -> Any:
    """The inverse of :func:`plain`."""
    return made_tuple([from_plain(item) for item in value]) if isinstance(value, tuple) else value


class Scope:
    """The values of bindings by number, and the scope around it."""

    def __init__(self, around: Scope | None = None) -> None:
        self.values: dict[int, Any] = {}
        self.around = around

    def __getitem__(self, number: int) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if number in scope.values:
                return scope.values[number]
            scope = scope.around
        raise AssertionError("the parser has resolved all names")


@dataclass(frozen=True)
class Closure:
    """A function with the scope that it was written in."""

    function: syntax.Function
    scope: Scope | None


class Evaluation:
    """One evaluation of a program; a :class:`~tvmfun.interop.relay.operators.table.Context` for its operators.

    Args:
        program: the functions, and the offset of the metadata.
        source: the text.
        metadata: the constants.
        train: whether batch normalizations use the batch's statistics and dropouts drop.
        random_key: for dropouts.
    """

    def __init__(
        self, program: syntax.Module, source: Source, metadata: Metadata, train: bool, random_key: Key | None
    ) -> None:
        self.program = program
        self.source = source
        self.metadata = metadata
        self.train = train
        self.random_key = random_key
        self.draws = 0
        self.calls = 0
        self.branches = 0
        #: New values of parameters by name, and the names of parameters by the identity of their values.
        self.updates: dict[str, Any] = {}
        self.parameters: dict[int, str] = {}
        #: Values of constants that are parameters, by index.
        self.constants: dict[int, Any] = {}

    # -- what operators ask for ----------------------------------------------------------------------------------------

    def key(self) -> Any:
        """The key of the next random operator."""
        if self.random_key is None:
            hint = "key=random.key(0)"
            raise ArgumentError("from_relay", "the function needs a key for dropout", got="None", hint=hint)
        self.draws += 1
        return random.fold_in(self.random_key, self.draws)

    def update(self, old: Any, new: Callable[[Any], Any]) -> Any:
        """The new value of a statistic; if it is a parameter, that is a result of the whole program, too."""
        name = self.parameters.get(id(old))
        if name is None:
            return new(old)
        if self.branches:
            raise ArgumentError("from_relay", "statistics must not be updated in a branch of `if`", got=f"%{name}")
        self.updates[name] = new(self.updates.get(name, old))
        return self.updates[name]

    # -- expressions ---------------------------------------------------------------------------------------------------

    def run(self, function: syntax.Function, arguments: Sequence[Any]) -> Any:
        """The result of a function of the module."""
        try:
            return plain(
                self.values_only(function.offset, self.call(Closure(function, None), arguments, function.offset))
            )
        except RecursionError:
            raise ProgramError("from_relay", "expressions are nested too deeply for the stack") from None

    def value(self, node: syntax.Expr, scope: Scope) -> Any:
        """The value of an expression: an array, a tuple, a closure or an operator."""
        match node:
            case syntax.Variable(number=number):
                return scope[number]
            case syntax.Constant(value=value):
                return value
            case syntax.Meta(offset=offset, key=key, index=index):
                constant = self.constants.get(index) if key == CONSTANT else None
                return self.metadata.constant(key, index, offset) if constant is None else constant
            case syntax.Global(name=name):
                return Closure(self.program.functions[name], None)
            case syntax.Function():
                return Closure(node, scope)
            case syntax.Operator():
                return node
            case syntax.Tuple(offset=offset, fields=fields):
                return self.tuple(offset, [self.value(field, scope) for field in fields])
            case syntax.Item():
                return self.item(node, self.value(node.value, scope))
            case syntax.Block():
                return self.block(node, scope)
            case syntax.If():
                return self.conditional(node, scope)
            case syntax.Call():
                arguments = [self.value(argument, scope) for argument in node.arguments]
                return self.called(node, self.value(node.function, scope), arguments)

    def tuple(self, offset: int, values: list[Any]) -> Fields:
        """A tuple of a size that can be handled."""
        result = made_tuple(values)
        if result.count > MOST_FIELDS or result.levels > MOST_LEVELS:
            what = f"a tuple must have at most {MOST_FIELDS} arrays in {MOST_LEVELS} levels"
            raise self.source.error(offset, what, got=f"{result.count} in {result.levels}")
        return result

    def item(self, node: syntax.Item, value: Any) -> Any:
        """A field of a tuple."""
        if not isinstance(value, Fields):
            raise self.source.error(node.offset, "only tuples have fields", got=_noun(value))
        if node.index >= len(value):
            raise self.source.error(node.offset, f"the tuple has {len(value)} fields", got=f".{node.index}")
        return value[node.index]

    def block(self, block: syntax.Block, around: Scope | None) -> Any:
        """The result of a block, after its bindings in order."""
        scope = Scope(around)
        for binding in block.bindings:
            value = self.value(binding.value, scope)
            self.check(binding.offset, "the binding", binding.type, value)
            scope.values[binding.number] = value
        return self.value(block.result, scope)

    def conditional(self, node: syntax.If, scope: Scope) -> Any:
        """The result of a branch; of the one that is chosen, if the condition is known."""
        condition = channels_first(self.value(node.condition, scope))
        if isinstance(condition, np.generic | np.ndarray) and condition.shape == () and condition.dtype == np.bool_:
            return self.block(node.then if condition else node.otherwise, scope)
        if not isinstance(condition, Array) or condition.shape or condition.dtype.name != "bool":
            raise self.source.error(node.offset, "a condition must be a bool without axes", got=_noun(condition))

        def branch(block: syntax.Block) -> Callable[[], Any]:
            return lambda: plain(self.values_only(node.offset, self.block(block, scope)))

        self.branches += 1
        try:
            result = lax.cond(condition, branch(node.then), branch(node.otherwise))
        except ProgramError:
            raise
        except TvmfunError as error:
            raise self.source.error(node.offset, "both branches must have the same type", got=str(error)) from error
        finally:
            self.branches -= 1
        return from_plain(result)

    def values_only(self, offset: int, value: Any) -> Any:
        """The value, which must not be or contain a function."""
        if isinstance(value, Fields):
            for item in value:
                self.values_only(offset, item)
        elif isinstance(value, Closure | syntax.Operator):
            raise self.source.error(offset, "functions are not values here", got=_noun(value))
        return value

    # -- calls ---------------------------------------------------------------------------------------------------------

    def called(self, node: syntax.Call, function: Any, arguments: list[Any]) -> Any:
        """The result of a call."""
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise self.source.error(node.offset, f"inlined, the program has more than {MOST_CALLS} calls")
        if isinstance(function, syntax.Operator):
            return self.applied(node, function.name, arguments)
        if isinstance(function, Closure):
            return self.call(function, arguments, node.offset)
        raise self.source.error(node.offset, "only functions and operators are called", got=_noun(function))

    def call(self, closure: Closure, arguments: Sequence[Any], offset: int) -> Any:
        """The result of a function, whose body is inlined."""
        function = closure.function
        if len(arguments) != len(function.parameters):
            wanted = len(function.parameters)
            raise self.source.error(offset, f"the function takes {wanted} arguments", got=str(len(arguments)))
        scope = Scope(closure.scope)
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            self.check(offset, f"%{parameter.name}", parameter.type, argument)
            scope.values[parameter.number] = argument
        result = self.block(function.body, scope)
        self.check(function.offset, "the result", function.result, result)
        return result

    def check(self, offset: int, name: str, type: syntax.Type, value: Any) -> None:
        """Raises unless a value has the type that is written for it."""
        if type is None:
            return
        if isinstance(type, syntax.TupleType):
            if not isinstance(value, Fields) or len(value) != len(type.fields):
                raise self.source.error(offset, f"{name} must be a tuple of {len(type.fields)}", got=_noun(value))
            for own, field in zip(type.fields, value, strict=True):
                self.check(offset, f"a field of {name}", own, field)
            return
        if isinstance(value, Fields | Closure | syntax.Operator) or not fits(type, value.shape, value.dtype.name):
            raise self.source.error(offset, f"{name} must be {type}", got=_noun(value))

    def applied(self, node: syntax.Call, name: str, arguments: list[Any]) -> Any:
        """The result of an operator."""
        row = TRANSLATIONS.get(name)
        if row is None:
            what = f"this operator is not read: {reason_left_out(name)}"
            raise self.source.error(node.offset, what, got=name[:60])
        for argument in arguments:
            self.values_only(node.offset, argument)
        try:
            self.check_arguments(row, arguments)
            attributes = read_attributes(row, self.resolved(row, node.attributes))
            context = (self,) if row.contextual else ()
            result = row.function(*context, *(_operand(argument, row.layouts) for argument in arguments), **attributes)
        except TvmfunError as error:
            if isinstance(error, ProgramError):
                raise
            what = error.what if error.where == name else str(error).rstrip(".")
            got = error.got if error.where == name else ""
            raise self.source.error(node.offset, f"{name}: {what}", got=got, hint=error.hint) from error
        except _OF_PYTHON as error:
            raise self.source.error(node.offset, f"{name} cannot be applied here", got=str(error)[:200]) from error
        return self.result(node.offset, name, result)

    def resolved(self, row: Translation, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes with constants in place of objects of the metadata section."""
        result = {}
        for name, value in attributes.items():
            is_read = name in row.attributes and row.attributes[name].kind != "Unread"
            if isinstance(value, syntax.Meta) and is_read:
                constant = np.asarray(self.metadata.constant(value.key, value.index, value.offset))
                value = tuple(constant.tolist()) if constant.ndim == 1 else constant.tolist()
            result[name] = value
        return result

    @staticmethod
    def check_arguments(row: Translation, arguments: list[Any]) -> None:
        """Raises unless there are as many arguments as the operator takes, of one dtype."""
        least, most = row.arguments
        if not least <= len(arguments) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise ArgumentError(row.name, f"it takes {wanted} arguments", got=str(len(arguments)))
        if row.mixed:
            return
        found = {item.dtype.name for item in _leaves(arguments)}
        if len(found) > 1:
            hint = "a cast before it"
            raise ArgumentError(row.name, "its arguments must have one dtype", got=", ".join(sorted(found)), hint=hint)

    def result(self, offset: int, name: str, value: Any) -> Any:
        """The result of an operator as a value of the program."""
        if isinstance(value, tuple | list):
            return self.tuple(offset, [self.result(offset, name, item) for item in value])
        if not isinstance(value, Array | ChannelsLast | np.ndarray | np.generic):
            value = tnp.asarray(value)
        try:
            check_sizes(name, value.shape)
        except ArgumentError as error:
            raise self.source.error(offset, f"{name}: {error.what}", got=error.got) from None
        return value


def fits(type: syntax.TensorType, shape: tuple, dtype: str) -> bool:
    """Whether an array has a type; a size that is dynamic on either side may be any."""
    return (
        dtype == type.dtype
        and len(shape) == len(type.shape)
        and all(n is None or not isinstance(m, int) or n == m for n, m in zip(type.shape, shape, strict=True))
    )


def _leaves(values: Sequence[Any]) -> list[Any]:
    """The arrays of tuples."""
    leaves = []
    for value in values:
        leaves += _leaves(value) if isinstance(value, tuple) else [value]
    return leaves


def _operand(value: Any, layouts: bool) -> Any:
    """An argument of a translation: arrays, and NumPy's without axes where the value is written in the text."""
    if isinstance(value, Fields):
        return tuple(_operand(item, layouts) for item in value)
    if layouts and isinstance(value, np.ndarray) and value.ndim:
        return tnp.asarray(value)
    return value if layouts else channels_first(value)


def _noun(value: Any) -> str:
    """A value in messages."""
    if isinstance(value, Fields):
        return f"a tuple of {len(value)}"
    if isinstance(value, Closure):
        return "a function"
    if isinstance(value, syntax.Operator):
        return f"the operator {value.name[:40]}"
    return str(syntax.TensorType(tuple(n if isinstance(n, int) else None for n in value.shape), value.dtype.name))
