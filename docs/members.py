"""Reference pages by sections: a fence ```` ```{members} MODULE ```` with names becomes their documentation.

The fence is replaced before the page is parsed: by a line of links, and an autodoc directive for each name. A line
``Class: name name`` documents only these members of a class.
"""

import inspect
import re
from enum import Enum
from importlib import import_module

FENCE = re.compile(r"^```\{members\} (\S+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
# With more names than this, a section begins with a line of links.
FEW = 3


def setup(app):
    app.connect("source-read", expand)
    return {"parallel_read_safe": True}


def expand(app, docname, source):
    source[0] = FENCE.sub(lambda match: section(match[1], match[2]), source[0])


def section(module, text):
    """The reStructuredText of a fence."""
    names, members = parse(text)
    blocks = []
    if len(names) > FEW:
        links = " ".join(f":py:obj:`~{module}.{name}`" for name in names)
        blocks.append(f".. container:: names\n\n   {links}")
    first = {}
    for name in names:
        value = getattr(import_module(module), name)
        original = first.setdefault(id(value), name)
        if original == name:
            blocks.append(entry(f"{module}.{name}", value, members.get(name)))
        else:
            blocks.append(f".. py:data:: {module}.{name}\n\n   Another name of :py:obj:`~{module}.{original}`.")
    return "```{eval-rst}\n" + "\n\n".join(blocks) + "\n```"


def parse(text):
    """The names of a fence in order, and the members that it selects of classes."""
    names, members = [], {}
    for line in text.splitlines():
        head, colon, tail = line.partition(":")
        names += head.split()
        if colon:
            members[head.strip()] = tail.split()
    return names, members


def entry(path, value, members):
    if isinstance(value, type):
        options = [f":members: {', '.join(members)}"] if members else class_options(value)
        return "\n   ".join([f".. autoclass:: {path}", *options])
    return f".. autofunction:: {path}" if callable(value) else f".. autodata:: {path}\n   :no-value:"


def class_options(cls):
    if issubclass(cls, BaseException):
        return [":members:", ":show-inheritance:"]
    if issubclass(cls, Enum):
        return [":members:", ":undoc-members:"]
    fields = getattr(cls, "_fields", None)
    if issubclass(cls, tuple) and fields is not None:
        # The docstring of a named tuple explains its fields.
        methods = [name for name, value in vars(cls).items() if is_documented(name, value) and name not in fields]
        return [f":members: {', '.join(methods)}"] if methods else []
    special = [name for name in ("__call__", "__getitem__") if is_documented_method(cls, name)]
    options = [":members:", ":inherited-members: tuple, list, dict, Generic"]
    return options + ([f":special-members: {', '.join(special)}"] if special else [])


def is_documented(name, value):
    return not name.startswith("_") and bool(getattr(value, "__doc__", None))


def is_documented_method(cls, name):
    method = inspect.getattr_static(cls, name, None)
    return inspect.isfunction(method) and bool(method.__doc__)
