"""Starts the Python programs of tests: as a fork of a process that has imported TensorFlow, or as a
fresh process.

``start`` and ``run`` are ``subprocess.Popen`` and ``subprocess.run`` for Python programs, in forks
of a zygote (``tests/zygote.py``), with arguments, environment, folder, streams, status and signals
as in a fresh process. There is one zygote for each environment that decides something while Python
starts or TensorFlow is imported. A test of the start itself or of ``fork`` gives its reason by
``fresh``.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import Popen  # which tests of benchmarks replace by start
from typing import Any, ClassVar

from tests import zygote

#: Beginnings of the names of variables that Python, C libraries, TensorFlow or Keras read when they
#: start.
_READ_AT_START = (
    *(
        "PYTHON",
        "LD_",
        "MALLOC_",
        "LC_",
        "LANG",
        "HOME",
        "TF_",
        "KERAS",
        "XLA_",
        "CUDA_",
        "GRPC_",
        "ABSL_",
    ),
    *("ONEDNN_", "DNNL_", "OMP_", "KMP_", "MKL_", "OPENBLAS_"),
)
#: These of them are read after a program has begun.
_READ_LATER = (
    "TF_ENABLE_AUTO",
    "TF_AUTO_MIXED_PRECISION",
    "TF_CONFIG",
    "XLA_FLAGS",
    "PYTHONPATH",
    "PYTHONWARNINGS",
)
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
#: Defaults for every program: the fewer environments, the fewer zygotes.
EVERYWHERE = {
    _LOG_LEVEL: "2",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONFAULTHANDLER": "1",  # a program that crashes says where
}
_AS_CPU = str(
    Path(__file__).resolve().parent / "as_cpu"
)  #: on PYTHONPATH it must be before TensorFlow's import
_STREAMS = frozenset(
    {"cwd", "stdin", "stdout", "stderr", "text", "bufsize", "encoding", "universal_newlines"}
)
_SESSION = "start_new_session"
_MOST_ZYGOTES = 4  # each takes 0.4 GB


def start(
    command,
    *,
    fresh="",
    env=None,
    **options,
):
    """``subprocess.Popen`` of a command that begins with this Python.

    Without a reason for a ``fresh`` process it is forked, unless it asks for more than a fork can
    be.
    """
    arguments = [os.fspath(argument) for argument in command]
    environ = EVERYWHERE | dict(os.environ if env is None else env)
    if fresh or not _is_forkable(arguments, environ, options):
        return Popen(arguments, env=environ, **options)
    return _Forked(arguments, env=environ, **options)


def run(
    command,
    *,
    input=None,
    capture_output=False,
    timeout=None,
    check=False,
    **options,
):
    """``subprocess.run`` of a command that begins with this Python; ``fresh`` is as for
    :func:`start`.
    """
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with start(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        ended.check_returncode()
    return ended


def is_running(process):
    """Tells whether a process has not ended, also where nobody has waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop_zygotes():
    """Ends those that wait for programs."""
    while _zygotes:
        _zygotes.popitem()[1].stop()


def _is_forkable(arguments, environ, options):
    """Tells whether a fork can be this process: this Python, and no options but those that a fork
    heeds.
    """
    interpreter, *rest = arguments
    if interpreter != sys.executable or not rest or not set(options) <= _STREAMS | {_SESSION}:
        return False
    is_flag = rest[0].startswith("-")
    if is_flag and rest[0] not in ("-c", "-m"):
        return False
    if not is_flag and not Path(options.get("cwd") or ".", rest[0]).is_file():
        return False
    if environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return False
    for entry in filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)):
        brought = [Path(entry, top + end) for top in zygote.HIDDEN for end in ("", ".py")]
        if not os.path.isabs(entry) or any(path.exists() for path in brought):
            return False
    return True


class _Zygote:
    """A process of ``tests/zygote.py``."""

    def __init__(self, environ):
        self._socket, theirs = socket.socketpair()
        with theirs:
            libraries = filter(importlib.util.find_spec, zygote.HIDDEN)
            command = [sys.executable, zygote.__file__, str(theirs.fileno()), *libraries]
            environ = {**environ, **zygote.NOT_WATCHED}
            self._process = Popen(
                command,
                env=environ,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )

    def fork(self, program, streams):
        """Starts a program; returns its process' number, and a pipe that says how it ended."""
        data = json.dumps(program).encode()
        end, theirs = os.pipe()
        try:
            header = zygote.LENGTH.pack(len(data))
            socket.send_fds(self._socket, [header], [*streams, theirs])
            self._socket.sendall(data)
        finally:
            os.close(theirs)
        answer = self._socket.recv(zygote.LENGTH.size, socket.MSG_WAITALL)
        if not answer:
            raise RuntimeError(f"the process that forks ended with status {self._process.wait()}")
        return zygote.LENGTH.unpack(answer)[0], end

    def stop(self):
        self._socket.close()
        self._process.communicate()


_zygotes = collections.OrderedDict()
_lock = threading.Lock()  # of their sockets


def _zygote_for(environ):
    is_older = _AS_CPU in environ.get("PYTHONPATH", "").split(os.pathsep)
    environ = {
        name: value
        for name, value in environ.items()
        if not name.startswith((*_READ_LATER, "AMP_TF", "_AMP_TF"))
    }
    if is_older:
        environ["PYTHONPATH"] = _AS_CPU
    if environ.get(_LOG_LEVEL) == "3":  # a program that is quieter still
        environ[_LOG_LEVEL] = EVERYWHERE[_LOG_LEVEL]
    key = frozenset(item for item in environ.items() if item[0].startswith(_READ_AT_START))
    if key not in _zygotes:
        if len(_zygotes) == _MOST_ZYGOTES:
            _zygotes.popitem(last=False)[1].stop()
        _zygotes[key] = _Zygote(environ)
    _zygotes.move_to_end(key)
    return _zygotes[key]


class _Forked(Popen[Any]):
    """A program that a zygote forked, of which it tells the status."""

    started: ClassVar[int] = 0  #: so many by this process
    _end = -1

    def _execute_child(self, args, *more):
        # Popen gives its method a long list: after the arguments, the folder is the fifth, and the
        # pipes' ends are six in a row, and the 21st is start_new_session, the same in Python 3.10
        # to 3.14.
        folder = str(more[4] or os.getcwd())
        environ = more[5]
        pipes = more[9:15]
        given = (pipes[0], pipes[3], pipes[5])
        streams = [own if fd == -1 else fd for own, fd in enumerate(given)]
        try:
            program = {
                "arguments": args[1:],
                "environ": environ,
                "folder": folder,
                _SESSION: more[20],
            }
            with _lock:
                self.pid, self._end = _zygote_for(environ).fork(program, streams)
            self._child_created = True
            _Forked.started += 1
        finally:
            self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags):
        if wait_flags == os.WNOHANG and not select.select([self._end], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._end, zygote.STATUS.size)
        os.close(self._end)
        if not status:
            raise RuntimeError("the process that forks ended before its program")
        return self.pid, zygote.STATUS.unpack(status)[0]

    def _internal_poll(self, _deadstate=None, **_):
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode
