"""Programs in Relay's text format, which TVM wrote until 0.18, as functions with parameters.

``from_relay`` reads the text by a table of operators, and ``load_params`` the file of parameters beside it.
"""

from tvmfun.boundary import publish
from tvmfun.interop.relay.functions import from_relay
from tvmfun.interop.relay.params import load_params

__all__ = ["from_relay", "load_params"]

publish(globals())
