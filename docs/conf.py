"""Sphinx configuration: ``make docs`` builds the pages into docs/_build/html, and warnings are errors."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT)]

import matplotlib  # noqa: E402
from gallery_sources import write_example_pages  # noqa: E402
from reference_pages import write_command_line, write_python  # noqa: E402

from dlplacer.core.version import __version__  # noqa: E402

matplotlib.use("Agg")

GENERATED = HERE / "reference" / "generated"
EXAMPLES = HERE / "_build" / "examples"
write_command_line(GENERATED / "command_line.md")
write_python(GENERATED / "python.rst")
write_example_pages(ROOT / "examples", EXAMPLES)

project = "dlplacer"
author = "the dlplacer authors"
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "mathml",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = [
    "_build",
    "_ext",
    "gallery/*.rst",
    "**/GALLERY_HEADER.*",
    "**/sg_execution_times.*",
    "sg_execution_times.*",
]
doctest_global_setup = "import dlplacer as dp"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"

sphinx_gallery_conf = {
    "examples_dirs": ["gallery", str(EXAMPLES)],
    "gallery_dirs": ["gallery_pages/short", "gallery_pages/long"],
    # The short ones draw pictures and run in seconds; the long ones train and profile, and are shown as they are.
    "filename_pattern": r"[/\\]plot_",
    "ignore_pattern": r"[/\\]_",
    "download_all_examples": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "show_memory": False,
    "within_subsection_order": "FileNameSortKey",
    "nested_sections": False,
    "min_reported_time": 10**9,
    "write_computation_times": False,
}

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = f"dlplacer {release}"
html_theme_options = {
    "navigation_with_keys": False,
    "show_nav_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_align": "left",
}
html_sidebars: dict[str, list[str]] = {page: [] for page in ("first_steps", "sharp_bits", "solver", "glossary")}
html_show_sphinx = False
html_copy_source = False
html_static_path: list[str] = []
