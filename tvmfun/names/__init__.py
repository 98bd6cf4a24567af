"""Errors for names that do not exist, of modules and of objects: where they are instead, or why there are none."""

from tvmfun.names.arguments import argument_for
from tvmfun.names.modules import MODULES, MissingNameError, missing
from tvmfun.names.objects import MissingAttributeError, missing_attribute

__all__ = ["MODULES", "MissingAttributeError", "MissingNameError", "argument_for", "missing", "missing_attribute"]
