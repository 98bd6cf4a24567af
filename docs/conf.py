from importlib.metadata import version as installed_version

project = "tvmfun"
author = "The tvmfun authors"
release = installed_version("tvmfun")
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"tvmfun {release}"
