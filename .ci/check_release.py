"""Whether the repository is ready for the release of a tag: python .ci/check_release.py v0.1.0

The version stands in pyproject.toml; the tag, CHANGELOG.md and CITATION.cff must agree with it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def complaints(tag: str) -> list[str]:
    """What is missing."""
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE).group(1)
    urls = re.search(r"^\[project\.urls\].*\n((?:\w.*\n)*)", project, re.MULTILINE).group(1)
    found = []
    if tag != f"v{version}":
        found.append(f"the tag must be v{version}, as version in pyproject.toml; got {tag!r}")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M):
        found.append(f"CHANGELOG.md must have a section '## [{version}] - YYYY-MM-DD'")
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        found.append(f"CITATION.cff must say 'version: {version}'")
    found += [f"[project.urls] must have {name}" for name in ("Source", "Issues") if f"{name} = " not in urls]
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check_release.py TAG, such as v0.1.0")
    if found := complaints(sys.argv[1]):
        sys.exit("Not ready for a release:\n" + "\n".join(f"- {complaint}." for complaint in found))
    print(f"{sys.argv[1]} may be released.")
