"""Opens files that others may have placed: only regular ones, and at most so many bytes.

Reading a pipe may wait without end, and a link to a device such as ``/dev/zero`` fills the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

#: Names of files that are not regular, by the type in their mode.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class RefusedFileError(OSError):
    """A file is not regular, or larger than its reader's limit; ``strerror`` says which."""


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Returns the content of a regular file, or of the one that a link leads to.

    Args:
        path: the file.
        limit: the most bytes that it may have.

    Raises:
        RefusedFileError: it is a folder, a pipe, a device or a socket, or has more than ``limit``
            bytes.
        OSError: it cannot be read.
    """
    with open_regular(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # it grew meanwhile, or tells no size, as in /proc
        raise _too_large(len(content), limit)
    return content


def open_regular(path: str | os.PathLike[str], limit: int | None = None) -> BinaryIO:
    """Opens a regular file for reading, without waiting; ``None`` is no limit.

    Raises:
        OSError: see :func:`read_regular`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(os.fstat(descriptor), limit)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(facts: os.stat_result, limit: int | None = None) -> None:
    """Checks the facts of a file.

    Raises:
        RefusedFileError: they are not those of a regular file of at most ``limit`` bytes.
    """
    if not stat.S_ISREG(facts.st_mode):
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
        raise RefusedFileError(errno.EINVAL, f"it is {kind}, not a file")
    if limit is not None and facts.st_size > limit:
        raise _too_large(facts.st_size, limit)


def _too_large(size: int, limit: int) -> RefusedFileError:
    return RefusedFileError(
        errno.EFBIG, f"it has {size:,} bytes or more, and {limit:,} are read at most"
    )
