"""The site: make docs. Pages are Markdown that a code host renders as well; the reference comes from the docstrings."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")  # the one whose import is the lightest

ROOT = Path(__file__).parent.parent

project = "softwood"
author = "The softwood maintainers"
project_copyright = author
version = release = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "code"
suppress_warnings = ["ref.python"]  # words of docstrings that several classes have as an attribute

myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False

html_theme = "furo"
html_title = f"softwood {release}"
html_show_copyright = False
html_static_path: list[str] = []

# Files outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "paper/README.md": "paper.md",
    "paper/RELATED.md": "paper-related.md",
}


def _relink_included(_app: Any, path: Path, _parent: str, content: list[str]) -> None:
    """Links of an included file, as they must be from docs/."""
    folder = (ROOT / "docs" / path).resolve().parent
    for name, page in PAGES.items():
        link = os.path.relpath(ROOT / name, folder)
        content[0] = content[0].replace(f"]({link}", f"]({page}")
    content[0] = re.sub(r"\]\((\.\./)?docs/([\w/-]+\.md)", r"](\2", content[0])


def _relink_page(_app: Any, _name: str, content: list[str]) -> None:
    """Links of a page of docs/ to files outside of it that are pages of the site."""
    for name, page in PAGES.items():
        content[0] = content[0].replace(f"](../{name}", f"]({page}")


def _skip_of_others(_app: Any, _what: str, _name: str, member: Any, skip: bool, _options: Any) -> bool | None:
    """Leave out what estimators inherit from scikit-learn, whose documentation describes it."""
    is_of_others = str(getattr(member, "__module__", "")).startswith("sklearn.")
    return True if is_of_others else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("include-read", _relink_included)
    app.connect("source-read", _relink_page)
    app.connect("autodoc-skip-member", _skip_of_others)
