"""Files that appear whole, where they were meant to, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from softwood.model.whole_file import whole_file, write_whole


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "v1").write_bytes(b"old")
    (tmp_path / "current").symlink_to(tmp_path / "store" / "v1")
    write_whole(tmp_path / "current", b"new")
    assert (tmp_path / "current").is_symlink()
    assert (tmp_path / "store" / "v1").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["current", "store"]


@pytest.mark.skipif(os.name != "posix", reason="pipes have names on POSIX systems")
def test_devices_and_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        with pytest.raises(OSError, match=r"must be a file, or not exist yet; it is a device, pipe or socket\. Name a"):
            write_whole(path, b"new")
    with pytest.raises(OSError, match=r"it is a folder\. Name a file\."):
        write_whole(tmp_path, b"new")
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_what_a_kill_left_behind_goes_at_the_next_write(tmp_path):
    path = tmp_path / "file"
    program = (
        "import os, signal, sys; from softwood.model.whole_file import whole_file\n"
        f"with whole_file({str(path)!r}) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    write_whole(path, b"new")
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_is_being_written_is_left_alone(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as slow:
        slow.write(b"slow")
        slow.flush()
        write_whole(path, b"quick")
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == ["file"]


def test_other_temporary_files_are_left_alone(tmp_path):
    others = [".file.tmp", ".file.0123456.tmp", ".other.01234567.tmp", "file.01234567.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    write_whole(tmp_path / "file", b"new")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "file"])
