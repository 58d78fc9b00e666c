"""Entry point of the command `softwood` and of ``python -m softwood``: errors of one line, and exit codes.

0 is success, 2 a mistake in the call or the data (explained in one line on standard error), 130 an interrupt by
Ctrl-C or SIGTERM. No command leaves a half-written file behind.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

_INTERRUPTED = 130  # what typer makes of KeyboardInterrupt


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        from softwood.cli.commands import app
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
            # Not standalone: mistakes in the call are then raised as exceptions, not printed as boxes of many lines.
            code = app(None if arguments is None else list(arguments), prog_name="softwood", standalone_mode=False)
            if code == _INTERRUPTED:
                return _interrupted()
            return code if isinstance(code, int) else 0
        except SystemExit as stop:
            if stop.code == 1:  # what typer makes of BrokenPipeError: the reader of our output, `head` say, has gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 0
            return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
        except (ValueError, TypeError, ImportError, OSError, FloatingPointError, MemoryError) as error:
            if os.environ.get("SOFTWOOD_TRACEBACK"):
                raise
            print(f"error: {_one_line(error)}", file=sys.stderr)
            return 2
        except Exception as error:
            return _usage_error(error)


def _interrupted() -> int:
    print("error: Interrupted; no file was left half-written.", file=sys.stderr)
    return _INTERRUPTED


def _usage_error(error: Exception) -> int:
    """Explain what is wrong with the call. Typer has its own copy of click's exceptions, so their names decide."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "NoArgsIsHelpError" in kinds:  # the help has been printed
        return 2
    if "ClickException" not in kinds:
        raise error
    context = getattr(error, "ctx", None)
    command = "softwood" if context is None else context.command_path
    message = _one_line(error.format_message())  # type: ignore[attr-defined]
    print(f"error: {message}{'' if message[-1:] in '.?' else '.'} See: {command} --help", file=sys.stderr)
    return 2


def _one_line(error: BaseException | str) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "No space is left on the disk that is written to. Free some, or choose another place with --out."
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}. Check the path and its permissions."
    return " ".join(str(error).split()) or type(error).__name__


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"note: {_one_line(message)}", file=sys.stderr)


def main() -> None:
    """Run the command of this process. SIGTERM has the effect of Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = run()
    except KeyboardInterrupt:  # while modules are imported, before typer takes over
        code = _interrupted()
    sys.exit(code)


if __name__ == "__main__":
    main()
