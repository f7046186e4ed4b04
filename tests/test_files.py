"""Only regular files up to a limit are read, and nothing that waits or never ends."""

import os
import socket

import pytest

from amp_tf.files import RefusedFileError, open_regular, read_regular


def test_a_file_and_what_a_link_leads_to_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 7) == b"content"
    assert read_regular(tmp_path / "link", 7) == b"content"
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"content"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a pipe"), ("zero", "a device"), ("", "a folder")):
        with pytest.raises(RefusedFileError, match=f"it is {kind}, not a file"):
            read_regular(tmp_path / name, 1 << 20)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            read_regular(tmp_path / "socket", 1 << 20)


def test_one_byte_more_than_the_limit_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(bytes(8))
    assert len(read_regular(tmp_path / "file", 8)) == 8
    with pytest.raises(RefusedFileError, match="it has 8 bytes or more, and 7 are read at most"):
        read_regular(tmp_path / "file", 7)


def test_a_file_that_does_not_tell_its_size_has_the_same_limit():
    assert os.stat("/proc/self/status").st_size == 0
    with pytest.raises(RefusedFileError, match="it has 11 bytes or more"):
        read_regular("/proc/self/status", 10)


def test_a_missing_file_is_the_systems_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 1)
