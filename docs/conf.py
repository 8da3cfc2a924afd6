"""Sphinx configuration."""

from normec import __version__

project = "normec"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "normec"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
myst_heading_anchors = 2
