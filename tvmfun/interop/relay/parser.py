"""A parser of Relay's text format: modules of functions in graph normal form, in A-normal form, or both."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.errors import ProgramError
from tvmfun.interop.relay import syntax
from tvmfun.interop.relay.cursor import Cursor
from tvmfun.interop.relay.source import Source
from tvmfun.interop.relay.tokens import VERSION, Token

#: How deep expressions may be nested; each level takes a few frames of Python's stack.
DEEPEST = 64
#: The most numbers at the end of a name, such as ``%input.1``.
MOST_NUMBERS = 4
#: The largest size of an axis.
LARGEST = 2**31 - 1

_ADT = "algebraic data types are not read"
_REFERENCES = "references are not read: a Program has no mutable cells"
_REFUSED = {
    "type": _ADT,
    "extern": _ADT,
    "match": _ADT,
    "ref": _REFERENCES,
    "ref_read": _REFERENCES,
    "ref_write": _REFERENCES,
    "free_var": "a program must not have free variables",
    "import": "imports of other texts are not read",
    "primfn": "functions of TIR are not read",
}
_KEYWORDS = {"let", "fn", "def", "if", "else", *_REFUSED}
#: Operators between expressions, with their precedence.
_BINARY = {
    "*": (3, "multiply"),
    "/": (3, "divide"),
    "+": (2, "add"),
    "-": (2, "subtract"),
    "<": (1, "less"),
    ">": (1, "greater"),
    "<=": (1, "less_equal"),
    ">=": (1, "greater_equal"),
    "==": (0, "equal"),
    "!=": (0, "not_equal"),
}
_META = re.compile(r"meta\[(?P<key>.*)\]\[(?P<index>\d+)\]")


def parse(source: Source) -> syntax.Module:
    """The functions of a text.

    Raises:
        ProgramError: if the text does not follow the grammar, uses a part of the language that a Program cannot
            express, or a function calls itself; the message has the line and the column.
    """
    try:
        return _Parser(source).module()
    except RecursionError:
        raise ProgramError("from_relay", "expressions are nested too deeply for the stack") from None


class _Parser(Cursor):
    """Reads tokens one by one; names are resolved while they are read."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.depth = 0
        self.count = 0
        self.scopes: list[dict[str, int]] = [{}]
        self.types: set[str] = set()
        #: Names of the bindings whose values are being read.
        self.open: list[str] = []
        #: The calls of functions of the module, by the function that they are in.
        self.calls: dict[str, dict[str, int]] = {}
        self.function_name = ""
        #: The objects of the metadata section that are expressions.
        self.constants: dict[tuple[str, int], syntax.Meta] = {}

    # -- modules -------------------------------------------------------------------------------------------------------

    def module(self) -> syntax.Module:
        """All functions of the text; an expression without a name is ``main``."""
        self.version()
        functions: dict[str, syntax.Function] = {}
        if self.is_word("fn"):
            functions["main"] = self.named("main", self.take())
        while self.is_word("def"):
            self.take()
            token = self.expect("global")
            name = token.text[1:]
            if name in functions:
                raise self.source.error(token.offset, "a function is defined twice", got=token.text)
            if self.is_next("="):
                raise self.source.error(token.offset, "external functions are not read", got=token.text)
            functions[name] = self.named(name, token)
        if self.token.kind == "name":
            self.refuse_keyword()
        metadata = None
        if self.is_next("header"):
            metadata = self.token.offset + len(self.token.text)
            if self.token is not self.tokens[-1]:
                raise self.unexpected("a function")
        elif not self.is_next("end"):
            raise self.unexpected("a function")
        self.check_calls(functions)
        return syntax.Module(functions, metadata, tuple(self.constants.values()))

    def version(self) -> None:
        """Reads the version of the format."""
        token = self.token
        match = re.fullmatch(r'#\[\s*version\s*=\s*"([^"]*)"\s*\]', token.text) if token.kind == "header" else None
        hint = f'a text that begins with #[version = "{VERSION}"]'
        if match is None:
            got = token.text[:40]
            raise self.source.error(
                token.offset, "the text must begin with the version of the format", got=got, hint=hint
            )
        if match[1] != VERSION:
            raise self.source.error(token.offset, f"only version {VERSION} is read", got=match[1], hint=hint)
        self.take()

    def named(self, name: str, token: Token) -> syntax.Function:
        """The function of a definition."""
        self.function_name = name
        self.calls[name] = {}
        return self.function(token.offset)

    def check_calls(self, functions: dict[str, syntax.Function]) -> None:
        """Raises unless all functions that are called are defined and none calls itself, by others or directly."""
        for calls in self.calls.values():
            for name, offset in calls.items():
                if name not in functions:
                    raise self.source.error(offset, "the function is not defined", got=f"@{name}")
        done: set[str] = set()
        for root in functions:
            # The path from the root, with the calls of each function that have not been followed.
            path = {root: iter(self.calls[root].items())}
            while path:
                here = next(reversed(path))
                name, offset = next(path[here], ("", 0))
                if not name:
                    done.add(here)
                    del path[here]
                elif name in path:
                    what = "recursion is not read: a Program has loops of known operators only"
                    raise self.source.error(offset, what, got=f"@{name}")
                elif name not in done:
                    path[name] = iter(self.calls[name].items())

    # -- functions and types -------------------------------------------------------------------------------------------

    def function(self, offset: int) -> syntax.Function:
        """Type parameters, parameters, the type of the result, and the body."""
        self.enter()
        self.scopes.append({})
        types = self.types
        if self.is_next("["):
            self.types = types | set(self.listed("[", "]", lambda: self.expect("name").text))
        self.expect("(")
        parameters = []
        while not self.is_next(")") and not self.at_attribute():
            parameters.append(self.parameter())
            if not self.is_next(","):
                break
            self.take()
        self.attributes()
        self.expect(")")
        result = None
        if self.is_next("->"):
            self.take()
            result = self.type()
        body = self.block()
        self.types = types
        self.scopes.pop()
        self.depth -= 1
        return syntax.Function(offset, tuple(parameters), result, body)

    def parameter(self) -> syntax.Parameter:
        """A parameter with its type, and perhaps the device that it is on."""
        token = self.token
        name = self.new_name()
        if name in self.scopes[-1]:
            raise self.source.error(token.offset, "two parameters have the same name", got=token.text)
        if self.is_next("{"):
            self.take()
            self.attributes()
            self.expect("}")
        return syntax.Parameter(token.offset, name, self.bind(name), self.annotation())

    def annotation(self) -> syntax.Type:
        """The type after a colon, if there is one."""
        if not self.is_next(":"):
            return None
        self.take()
        return self.type()

    def type(self) -> syntax.Type:
        """A type; None for those that are not checked."""
        token = self.token
        if token.kind == "(":
            self.enter()
            fields = self.listed("(", ")", self.type)
            self.depth -= 1
            return syntax.TupleType(tuple(fields))
        if token.kind == "meta":
            raise self.source.error(token.offset, "types in the metadata section are not read", got=token.text)
        self.expect("name")
        if token.text == "_" or token.text in self.types:
            return None
        if token.text == "fn":
            self.function_type()
            return None
        if token.text == "Tensor":
            self.expect("[")
            shape = self.listed("(", ")", self.size)
            self.expect(",")
            dtype = self.dtype(self.expect("name"))
            self.expect("]")
            return syntax.TensorType(tuple(shape), dtype)
        if token.text in _REFUSED:
            raise self.source.error(token.offset, _REFUSED[token.text], got=token.text)
        if re.match(r"(?:u?int|b?float|bool)\d*", token.text):
            return syntax.TensorType((), self.dtype(token))
        raise self.source.error(token.offset, _ADT, got=token.text)

    def function_type(self) -> None:
        """The type of a function, which is not checked."""
        self.enter()
        if self.is_next("["):
            self.types = self.types | set(self.listed("[", "]", lambda: self.expect("name").text))
        self.listed("(", ")", self.type)
        self.expect("->")
        self.type()
        self.depth -= 1

    def size(self) -> int | None:
        """A size of a shape; None where it is dynamic."""
        if self.is_next("?"):
            self.take()
            return None
        token = self.token
        value = self.number(self.expect("number"), 1)
        if not isinstance(value, np.integer) or value > LARGEST:
            raise self.source.error(token.offset, f"a size must be an integer up to {LARGEST}", got=token.text[:40])
        return int(value)

    def dtype(self, token: Token) -> str:
        """The name of a dtype."""
        known = next((name for name in dtypes.NAMES.values() if name == token.text), None)
        if known is None:
            hint = f"one of {', '.join(dtypes.NAMES.values())}"
            raise self.source.error(token.offset, "the dtype is not supported", got=token.text[:40], hint=hint)
        return known

    # -- expressions ---------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Begins a level of nesting."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.source.error(self.token.offset, f"expressions are nested in more than {DEEPEST} levels")

    def bind(self, name: str) -> int:
        """A new number for a name in the innermost scope."""
        self.count += 1
        self.scopes[-1][name] = self.count
        return self.count

    def new_name(self) -> str:
        """A name that is being bound; names from PyTorch may end with numbers, such as ``%input.1``."""
        name = self.expect("local").text[1:]
        for _ in range(MOST_NUMBERS):
            if not self.is_next("."):
                break
            self.take()
            name += f".{self.expect('number').text}"
        return name

    def block(self) -> syntax.Block:
        """Bindings and a result between braces."""
        offset = self.expect("{").offset
        self.scopes.append({})
        block = self.bindings(offset)
        self.scopes.pop()
        self.expect("}")
        return block

    def bindings(self, offset: int) -> syntax.Block:
        """Bindings and a result; an expression that is followed by a semicolon is a binding without a name."""
        bindings = []
        while True:
            token = self.token
            type, name = None, ""
            if self.is_word("let"):
                self.take()
                name = self.new_name()
                if self.is_next("{"):
                    self.take()
                    self.attributes()
                    self.expect("}")
                type = self.annotation()
                self.expect("=")
            elif token.kind == "graph" and self.tokens[self.next + 1].kind == "=":
                name = self.take().text[1:]
                self.take()
            self.open.append(name)
            value = self.expression()
            self.open.pop()
            if not self.is_next(";"):
                if name:
                    raise self.unexpected(";")
                return syntax.Block(offset, tuple(bindings), value)
            self.take()
            bindings.append(syntax.Binding(token.offset, self.bind(name), type, value))

    def expression(self, precedence: int = 0) -> syntax.Expr:
        """Calls and fields of atoms, with operators between them."""
        self.enter()
        left = self.postfix()
        while self.token.kind in _BINARY and _BINARY[self.token.kind][0] >= precedence:
            token = self.take()
            level, name = _BINARY[token.kind]
            right = self.expression(level + 1)
            left = syntax.Call(token.offset, syntax.Operator(token.offset, name), (left, right), {})
        self.depth -= 1
        return left

    def postfix(self) -> syntax.Expr:
        """An atom and the calls and fields that follow it."""
        value = self.atom()
        while self.is_next("(", "."):
            if self.take().kind == ".":
                token = self.expect("number")
                value = syntax.Item(token.offset, value, self.index(token))
            else:
                value = self.call(value)
        return value

    def call(self, function: syntax.Expr) -> syntax.Call:
        """Arguments and attributes, after the opening parenthesis."""
        arguments = []
        while not self.is_next(")") and not self.at_attribute():
            arguments.append(self.expression())
            if not self.is_next(","):
                break
            self.take()
        attributes = self.attributes()
        self.expect(")")
        return syntax.Call(function.offset, function, tuple(arguments), attributes)

    def atom(self) -> syntax.Expr:
        """An expression without calls around it."""
        token = self.token
        if token.kind in ("local", "graph"):
            return self.variable(self.take())
        if token.kind == "name":
            return self.named_atom(token)
        if token.kind in ("number", "-"):
            return syntax.Constant(token.offset, self.signed(self.number))
        if token.kind == "global":
            name = self.take().text[1:]
            self.calls[self.function_name].setdefault(name, token.offset)
            return syntax.Global(token.offset, name)
        if token.kind == "meta":
            meta = self.meta(self.take())
            return self.constants.setdefault((meta.key, meta.index), meta)
        if token.kind == "(":
            return self.parenthesized()
        if token.kind == "{":
            return self.block()
        raise self.unexpected("an expression")

    def named_atom(self, token: Token) -> syntax.Expr:
        """A keyword's expression, a truth value, or an operator."""
        if token.text == "fn":
            return self.function(self.take().offset)
        if token.text == "if":
            return self.conditional(self.take())
        self.refuse_keyword()
        self.take()
        if token.text in ("True", "False"):
            return syntax.Constant(token.offset, np.bool_(token.text == "True"))
        return syntax.Operator(token.offset, token.text)

    def refuse_keyword(self) -> None:
        """Raises if the next token is a keyword that begins nothing that is read here."""
        if self.token.text in _REFUSED:
            raise self.source.error(self.token.offset, _REFUSED[self.token.text], got=self.token.text)
        if self.token.text in _KEYWORDS:
            raise self.unexpected("an expression")

    def variable(self, token: Token) -> syntax.Variable:
        """A name that is bound; ``%input.1`` is a field of ``%input`` unless there is a name like that."""
        name = token.text[1:]
        number, end = self.bound(name), self.next
        for _ in range(MOST_NUMBERS):
            if self.tokens[end].kind != "." or self.tokens[end + 1].kind != "number":
                break
            name, end = f"{name}.{self.tokens[end + 1].text}", end + 2
            if (found := self.bound(name)) is not None:
                number, self.next = found, end
        if number is not None:
            return syntax.Variable(token.offset, number)
        what, name = "the name is not bound", token.text[1:]
        if name in self.open:
            what = "recursion is not read: a Program has loops of known operators only"
        raise self.source.error(token.offset, what, got=token.text[:40])

    def bound(self, name: str) -> int | None:
        """The number of a name in the innermost scope that has it."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def parenthesized(self) -> syntax.Expr:
        """A tuple, or an expression in parentheses, which may begin with bindings."""
        self.enter()
        offset = self.take().offset
        fields, is_tuple = [], self.is_next(")")
        while not self.is_next(")"):
            if self.is_word("let") or self.is_next("graph"):
                self.scopes.append({})
                block = self.bindings(self.token.offset)
                fields.append(block if block.bindings else block.result)
                self.scopes.pop()
            else:
                fields.append(self.expression())
            if not self.is_next(","):
                break
            self.take()
            is_tuple = True
        self.expect(")")
        self.depth -= 1
        return syntax.Tuple(offset, tuple(fields)) if is_tuple else fields[0]

    def conditional(self, token: Token) -> syntax.If:
        """The condition and both branches."""
        self.expect("(")
        condition = self.expression()
        self.expect(")")
        then = self.block()
        self.word("else")
        return syntax.If(token.offset, condition, then, self.block())

    def meta(self, token: Token) -> syntax.Meta:
        """A reference to the metadata section."""
        match = _META.fullmatch(token.text)
        if match is None or len(match["index"]) > 9:
            raise self.source.error(token.offset, "this is not an object of the metadata section", got=token.text[:40])
        return syntax.Meta(token.offset, match["key"], int(match["index"]))

    # -- attributes ----------------------------------------------------------------------------------------------------

    def at_attribute(self) -> bool:
        """Whether an attribute follows: a name and an equals sign."""
        return self.token.kind == "name" and self.tokens[self.next + 1].kind == "="

    def attributes(self) -> dict[str, Any]:
        """Attributes, separated by commas."""
        result: dict[str, Any] = {}
        while self.at_attribute():
            token = self.take()
            self.take()
            if token.text in result:
                raise self.source.error(token.offset, "an attribute is there twice", got=token.text)
            result[token.text] = self.attribute()
            if not self.is_next(","):
                break
            self.take()
        return result

    def attribute(self) -> Any:
        """The value of an attribute: a number, a truth value, text, None, a list, or an object of the metadata."""
        token = self.token
        if token.kind in ("number", "-"):
            return self.signed(self.attribute_number)
        if token.kind == "string":
            return re.sub(r"\\(.)", r"\1", self.take().text[1:-1], flags=re.DOTALL)
        if token.kind == "meta":
            return self.meta(self.take())
        if token.kind in ("[", "("):
            self.enter()
            items = self.listed(token.kind, "]" if token.kind == "[" else ")", self.attribute)
            self.depth -= 1
            return tuple(items)
        if token.kind == "{":
            return self.mapping()
        if token.kind == "name" and token.text in ("True", "False", "None", "nullptr"):
            return {"True": True, "False": False}.get(self.take().text)
        if token.kind == "?":
            raise self.source.error(token.offset, "an attribute must not depend on dynamic sizes")
        raise self.unexpected("the value of an attribute")

    def mapping(self) -> dict[str, Any]:
        """A dict, as attributes of functions have it: names or texts with values."""
        self.enter()
        self.expect("{")
        result = {}
        while not self.is_next("}"):
            token = self.take()
            if token.kind not in ("name", "string"):
                raise self.source.error(token.offset, "a name should be here", got=token.text[:40])
            if not self.is_next("=", ":"):
                raise self.unexpected("=")
            self.take()
            result[token.text.strip('"')] = self.attribute()
            if not self.is_next(","):
                break
            self.take()
        self.expect("}")
        self.depth -= 1
        return result
