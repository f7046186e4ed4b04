"""A process that has imported TensorFlow and Keras and forks for each program that it is given.

``tests/processes.py`` starts it by this file's path and sends it programs. Nothing of TensorFlow
has run in it: no op, no device, no thread but BLAS', which follows a fork.

A program finds TensorFlow not imported yet. Its own ``import tensorflow`` gives it what is there,
through Python's import system, so that amp_tf's and anybody's import hooks fire as in a fresh
process, and writes to stderr what the first import wrote.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import warnings
from importlib.machinery import BuiltinImporter, PathFinder, SourceFileLoader
from types import ModuleType

LENGTH = struct.Struct("!I")
MOST_FDS = 4  #: three streams, and the pipe to which the status is written
STATUS = struct.Struct("!i")
HIDDEN = ("tensorflow", "keras", "tf_keras")
GARBAGE = 10_000  #: so many objects more begin a garbage collection
WHOLE_END = (
    "TEST_WHOLE_END"  #: in the environment of programs whose end is looked at to Python's last step
)
#: In a program's environment, for the process that forks: amp_tf must notice neither its import nor
#: the variables.
NOT_WATCHED = {"AMP_TF_DISABLE": "1"}


class Imported:
    """A meta path finder that gives out what the process imported before it forked, at the import
    by that name.
    """

    def __init__(self):
        self._hidden = {}
        self._brings = []
        self._written = b""
        self._variables = {}

    def import_all(self, names):
        before = dict(os.environ)
        with tempfile.TemporaryFile() as file:
            with _stderr_to(file.fileno()):
                for name in names:  # TensorFlow is the first
                    importlib.import_module(name)
                    if name == "tensorflow":
                        self._brings = [
                            name for name in ("keras", "tf_keras") if name in sys.modules
                        ]
            file.seek(0)
            self._written = file.read()
        self._variables = dict(os.environ.items() - before.items())

    def hide(self):
        for top in HIDDEN:
            if top in sys.modules:
                names = [name for name in sys.modules if name.partition(".")[0] == top]
                self._hidden[top] = {name: sys.modules.pop(name) for name in names}
        finders = [getattr(finder, "__name__", "") for finder in sys.meta_path]
        sys.meta_path.insert(finders.index(PathFinder.__name__), self)

    def find_spec(self, name, path=None, target=None):
        if name not in self._hidden:
            return None
        module = self._hidden[name][name]
        found = PathFinder.find_spec(name, path, target)
        spec = module.__spec__
        if found is None or spec is None or found.origin != spec.origin:
            return None  # the program brings one of its own
        loader = spec.loader
        loader.create_module = lambda _: module
        loader.exec_module = self._show
        return spec

    def _show(self, module):
        loader = module.__spec__ and module.__spec__.loader
        for method in ("create_module", "exec_module"):
            vars(loader).pop(method, None)
        name = module.__name__
        modules = self._hidden.pop(name)
        if name != "tensorflow":
            importlib.import_module("tensorflow")  # as its own code does first
        sys.modules.update(modules)
        if name == "tensorflow":
            os.write(2, self._written)
            os.environ.update(self._variables)
            for brought in self._brings:
                importlib.import_module(brought)  # as its own code does last


class Zygote:
    """Forks for each request on the socket, and tells the status of each child that ends."""

    def __init__(self, requests):
        self._requests = requests
        self._ends = {}
        self._woken, self._wake = os.pipe()
        self._on_interrupt = signal.getsignal(signal.SIGINT)

    def serve(self):
        """Forks for each request, and returns what the program is to be, in the child alone."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            ready, _, _ = select.select([self._requests, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._requests in ready:
                program, fds = self._receive()
                child = os.fork()
                if child == 0:
                    self._leave(fds)
                    return program
                *streams, self._ends[child] = fds
                for fd in streams:
                    os.close(fd)
                self._requests.sendall(LENGTH.pack(child))

    def _receive(self):
        header, fds, _, _ = socket.recv_fds(self._requests, LENGTH.size, MOST_FDS)
        if not header:
            os._exit(0)  # the session is over
        (length,) = LENGTH.unpack(header)
        data = self._requests.recv(length, socket.MSG_WAITALL)
        return json.loads(data), fds

    def _reap(self):
        while self._ends:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            end = self._ends.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                os.write(end, STATUS.pack(status))
            os.close(end)

    def _leave(self, fds):
        """In the child: nothing is left of the parent but what it imported."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._on_interrupt)
        for stream, fd in enumerate(fds[:3]):
            os.dup2(fd, stream)
        self._requests.close()
        for fd in {*fds, *self._ends.values(), self._woken, self._wake}:
            os.close(fd)


def become(program):
    """Makes this process what Python makes of a command line before the program's first line."""
    if program["start_new_session"]:
        os.setsid()
    os.chdir(program["folder"])
    environ = {**_added_at_start(), **program["environ"]}
    os.environ.clear()  # both change what C's getenv finds, too
    os.environ.update(environ)
    sys.orig_argv[:] = [sys.executable, *program["arguments"]]
    given = environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [entry for entry in given if entry and entry not in sys.path]
    sys.warnoptions[:] = filter(None, environ.get("PYTHONWARNINGS", "").split(","))
    warnings._processoptions(sys.warnoptions)  # what Python itself calls
    # Every other generator is seeded anew by a fork, or when it is first asked.
    sys.modules["numpy"].random.seed()
    if "_amp_tf_start" in sys.modules:  # what amp_tf.pth does
        sys.modules["_amp_tf_start"].install()
    customized = any(
        os.path.exists(os.path.join(entry, "sitecustomize.py")) for entry in given if entry
    )
    if customized:
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def run(arguments):
    """Runs the program as the main module."""
    first, *rest = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], __annotations__={})
    if first == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # what Python itself calls
        return
    if first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        vars(main)["__loader__"] = BuiltinImporter
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv[:] = [first, *rest]
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
        path = os.path.abspath(first)
        vars(main).update(
            __loader__=SourceFileLoader("__main__", path), __file__=path, __cached__=None
        )
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def run_to_its_end(arguments, status):
    """Runs the program; an error ends it as Python would, without the lines of this file in the
    traceback.
    """
    try:
        run(arguments)
        status.append(0)
    except SystemExit as error:
        status.append(0 if error.code is None else error.code)
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.last_type = type(error)
        sys.last_value = error
        sys.last_traceback = trace
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None
            raise
        status.append(1)
        sys.exit(1)


def end_at_once(status):
    """The last at a program's exit: to take all modules down, as Python then does, takes longer
    than many programs.

    An end without a number for its status is left to Python, which has more to say of it.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(*status)


def _added_at_start():
    """Returns the variables that Python adds to its environment in the C locale."""
    with open("/proc/self/environ", "rb") as file:
        is_given = b"LC_CTYPE=" in file.read()
    if is_given or "LC_CTYPE" not in os.environ:
        return {}
    return {"LC_CTYPE": os.environ["LC_CTYPE"]}


def main():
    del sys.path[0]  # the folder of this file
    status = []
    atexit.register(end_at_once, status)  # the first that is registered is the last that runs
    requests = socket.socket(fileno=int(sys.argv[1]))
    imported = Imported()
    imported.import_all(sys.argv[2:])
    imported.hide()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    program = Zygote(requests).serve()
    if WHOLE_END in program["environ"]:
        atexit.unregister(end_at_once)
    become(program)
    run_to_its_end(program["arguments"], status)


@contextlib.contextmanager
def _stderr_to(fd):
    before = os.dup(2)
    os.dup2(fd, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


if __name__ == "__main__":
    main()
