"""Files that appear whole or not at all, whenever the writer is killed.

The contents go to a temporary file beside their place, which is then renamed. The temporary file is locked while it is
written: one without a lock was left behind by a killed process, and the next writer of the same file removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and so nothing is removed
    fcntl = None  # type: ignore[assignment]

# An empty temporary file may belong to a writer that has not locked it yet, if it is younger than this many seconds.
_YOUNG = 60.0


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing, which takes its name when the with statement ends without an error.

    A symbolic link is followed. A name that belongs to a folder, a device or a pipe is refused with an OSError.
    """
    path = os.path.realpath(os.fspath(path))
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"The folder of {path!r} must exist; it does not. Make it first.")
    require_regular(path)
    _remove_abandoned(folder, name)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            if fcntl is not None:
                with contextlib.suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:  # before the lock is lost
                os.replace(temporary, path)
        if fcntl is None:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise
    _sync_folder(folder)


def write_whole(path: str | os.PathLike[str], contents: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one, whole."""
    with whole_file(path) as file:
        file.write(contents)


def require_regular(path: str | os.PathLike[str]) -> None:
    """Refuse the name of something that is there and is no file: renaming would replace it by one."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
            raise OSError(f"{os.fspath(path)!r} must be a file, or not exist yet; it is {what}. Name a file.")


def _remove_abandoned(folder: str, name: str) -> None:
    """Remove temporary files of the same name that no writer holds a lock on."""
    if fcntl is None:
        return
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    facts = os.fstat(file.fileno())
                    if facts.st_size > 0 or time.time() - facts.st_mtime > _YOUNG:
                        os.remove(entry.path)


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):  # a directory cannot be opened everywhere
        descriptor: Any = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
