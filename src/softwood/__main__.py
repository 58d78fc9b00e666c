"""Entry point of the command `softwood` and of ``python -m softwood``: errors of one line, and exit codes.

0 is success, 2 a mistake in the call or the data (said in one line on standard error), 130 an interrupt by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        from softwood.cli import app
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich", "pyarrow"):
            raise
        print(f"error: The softwood command needs {missing}: pip install 'softwood[cli]'", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning  # catch_warnings puts the old one back
        try:
            app(None if arguments is None else list(arguments), prog_name="softwood")
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
        except KeyboardInterrupt:
            print("error: Interrupted; nothing was written.", file=sys.stderr)
            return 130
        except BrokenPipeError:  # the reader of our output, `head` say, has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (ValueError, TypeError, ImportError, OSError, FloatingPointError, MemoryError) as error:
            if os.environ.get("SOFTWOOD_TRACEBACK"):
                raise
            print(f"error: {_one_line(error)}", file=sys.stderr)
            return 2
    return 0


def _one_line(error: BaseException | str) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}. Check the path and its permissions."
    return " ".join(str(error).split()) or type(error).__name__


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"note: {_one_line(message)}", file=sys.stderr)


def main() -> None:
    """Run the command that the shell asked for."""
    sys.exit(run())


if __name__ == "__main__":
    main()
