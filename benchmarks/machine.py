"""Facts about the machine and the software that a measurement was made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import softwood
from softwood import ops


def facts() -> dict[str, Any]:
    """Everything that times depend on besides the code."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "instruction_set": ops.instruction_set(),
        **versions(("softwood", "numpy", "torch")),
        "commit": commit(),
        "compiler": (_output(os.environ.get("CXX", "c++"), "--version") or "unknown").splitlines()[0],
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {"softwood": softwood.__version__}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of this checkout, with "-changed" if its sources differ from it; None outside a checkout."""
    name = _output("git", "rev-parse", "--short", "HEAD")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", "../src", "../core", "../bindings")
    return f"{name}-changed" if name and changed else name


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level} {kind.lower()}"] = size
    return found


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
