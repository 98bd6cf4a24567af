"""Programs as text files, which people can read and compare, and which are read without running anything of them.

``values`` are the parameters of ops, ``sizes`` their dynamic sizes; ``writer`` and ``reader`` are about whole Programs,
``nested`` checks the Programs inside of loops, branches and calls, and ``files`` adds the manifest and the arrays.
"""
