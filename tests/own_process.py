"""Tests that run in another process, because they need settings that are fixed when a module is imported.

A test that is marked by ``process(NAME="value", ...)`` runs in a process with these environment variables, and is
reported like any other. One process serves tests with the same settings one after the other, until one with others
comes: parametrize by a fixture with the scope of the module. The process imports the test module itself, so that here
the module needs no more than to be collected. conftest.py takes its hooks from this module.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Pipe

import pytest

_CONNECTION = "SOFTWOOD_TEST_CONNECTION"  # file descriptor, in the other process
_TIMEOUT = 300  # seconds for a test there; less than here, so that it is the other process that is ended
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

IS_OTHER_PROCESS = _CONNECTION in os.environ


class Process:
    """A process with a test module and settings that runs one test after the other."""

    def __init__(self, path: str, settings: dict[str, str]) -> None:
        self.key = path, settings
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.connection, theirs = Pipe()
        # One thread each: test processes run side by side, and torch's threads spin while they wait for a core.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings, _CONNECTION: str(theirs.fileno())}
        environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"timeout={_TIMEOUT}", path]
        self.process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, pass_fds=[theirs.fileno()], stdout=self.output, stderr=self.output
        )
        theirs.close()

    def run(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Return the reports of a test; one of a failure if the process ended."""
        try:
            self.connection.send(item.nodeid)
            found = self.connection.recv()
        except (EOFError, OSError):
            return [self.report_of_the_end(item)]
        return [item.config.hook.pytest_report_from_serializable(config=item.config, data=data) for data in found]

    def report_of_the_end(self, item: pytest.Item) -> pytest.TestReport:
        self.close()
        self.output.seek(0)
        said = self.output.read().decode(errors="replace")[-6000:]
        message = f"The process of this test ended with exit code {self.process.returncode}. It said:\n{said}"
        return pytest.TestReport(item.nodeid, item.location, dict(item.keywords), "failed", message, "call")

    def close(self) -> None:
        """End the process and wait for it."""
        self.connection.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_process: Process | None = None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "process(NAME=value, ...): run in a process with these environment variables")


def _key(item: pytest.Item | None) -> tuple[str, dict[str, str]] | None:
    """Return the test module and the settings of the process that a test asks for; None if this one will do."""
    mark = None if item is None else item.get_closest_marker("process")
    return None if item is None or mark is None else (str(item.path), mark.kwargs)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test in the process that it asks for."""
    global _process
    key = _key(item)
    if key is None or IS_OTHER_PROCESS:
        return None
    if _process is not None and (_process.key != key or _process.process.poll() is not None):
        _end_process()
    if _process is None:
        _process = Process(*key)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _process.run(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if _key(nextitem) != key:  # at the latest after the last test, when coverage collects what processes have written
        _end_process()
    return True


def _end_process() -> None:
    global _process
    if _process is not None:
        _process.close()
        _process = None


def pytest_sessionfinish() -> None:
    """After an interrupt."""
    _end_process()


class _Collected:
    """Reports of the test that has just run."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """In the other process: run the requested tests until there are no further requests."""
    if not IS_OTHER_PROCESS or session.testsfailed:  # pytest then says what could not be collected
        return None
    items = {item.nodeid: item for item in session.items}
    collected = _Collected()
    session.config.pluginmanager.register(collected)
    with Connection(int(os.environ[_CONNECTION])) as connection:
        while True:
            try:
                item = items[connection.recv()]
            except EOFError:
                return True
            collected.reports.clear()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            to_plain = session.config.hook.pytest_report_to_serializable
            connection.send([to_plain(config=session.config, report=report) for report in collected.reports])
