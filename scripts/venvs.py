"""Virtual environments for the scripts of this folder: made, filled and brought up to date, with
the stdlib alone.

Every script here runs on a machine that has nothing but Python 3.10+ and pip, so this module may
import nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

MINIMUM = (3, 10)  #: of Python
ROOT = pathlib.Path(__file__).resolve().parent.parent
_STAMP = "amp_tf_installed.txt"
_BUILD_FILES = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "amp_tf.pth",
    "amp_tf.start",
    "_amp_tf_start.py",
)


class SetupError(Exception):
    """An environment could not be made; the text says what, where and what to do."""


class Stage:
    """One line of progress: the task and its time so far; rewritten in place on a terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = time.monotonic()
        self._live = sys.stdout.isatty()
        self._width = 0
        if not self._live:
            print(f"{title} …", flush=True)

    def show(self, detail: str = "") -> None:
        """Redraw the line (terminals only)."""
        if self._live:
            self._write(f"{self._title} … {detail}{self._seconds():.0f} s", end="")

    def done(self, detail: str = "") -> None:
        """End the line."""
        self._write(f"{self._title}: {detail}{self._seconds():.0f} s", end="\n")

    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def _write(self, text: str, *, end: str) -> None:
        padding = " " * max(0, self._width - len(text))
        self._width = len(text)
        print(f"\r{text}{padding}" if self._live else text, end=end, flush=True)


@dataclasses.dataclass(frozen=True)
class Venv:
    """A virtual environment.

    Attributes:
        path: its folder.
        log: where the output of pip goes.
    """

    path: pathlib.Path
    log: pathlib.Path

    @property
    def python(self) -> pathlib.Path:
        return self.path / "bin" / "python"

    @property
    def bin(self) -> pathlib.Path:
        return self.path / "bin"

    def pip(self, *arguments: str, title: str, cwd: pathlib.Path = ROOT) -> None:
        """Run pip in this environment, its output going to the log.

        Raises:
            SetupError: pip's status was not 0; the text ends with the last lines of its output.
        """
        pip = [str(self.python), "-m", "pip"]
        if not (self.bin / "pip").exists():
            pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        command = [*pip, "--disable-pip-version-check", *arguments]
        run(command, title=title, log=self.log, cwd=cwd)

    def version_of(self, distribution: str) -> str:
        """The version of an installed distribution, or "" if it is not installed."""
        code = (
            "import importlib.metadata as m, sys\n"
            "try: print(m.version(sys.argv[1]))\nexcept m.PackageNotFoundError: pass"
        )
        # -I leaves the current folder out: the metadata of a checkout is no installation.
        command = [self.python, "-I", "-c", code, distribution]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    def read_stamp(self) -> str:
        stamp = self.path / _STAMP
        return stamp.read_text(encoding="utf-8") if stamp.exists() else ""

    def write_stamp(self, text: str) -> None:
        (self.path / _STAMP).write_text(text, encoding="utf-8")


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a script's ``main`` and end the program with its status.

    A Python that is too old and an environment that could not be made are said on stderr, with the
    status 1.
    """
    if sys.version_info < MINIMUM:
        found = ".".join(map(str, sys.version_info[:3]))
        needed = ".".join(map(str, MINIMUM))
        sys.exit(
            f"Python {found} at {sys.executable} is too old: Python {needed} or newer is needed. "
            f"Run this script with such a one: python3.11 {sys.argv[0]}"
        )
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"\n{error}")


def run(
    command: Sequence[str],
    *,
    title: str,
    log: pathlib.Path,
    cwd: pathlib.Path = ROOT,
    env: dict[str, str] | None = None,
) -> None:
    """Run a command to its end, its output appended to ``log``, with a line of progress.

    Raises:
        SetupError: the status was not 0.
    """
    stage = Stage(title)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=env
        )
        while True:
            try:
                status = process.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                stage.show()
    stage.done()
    if status != 0:
        tail = "\n  ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise SetupError(f"{title}: status {status}. The last lines of {log}:\n  {tail}")


def make(path: pathlib.Path, python: str = sys.executable, *, with_pip: bool = True) -> Venv:
    """The environment at ``path``, made with ``python`` where there is none that works.

    Where it needs no pip of its own, or gets one with what is installed, the pip that is there
    fills it from outside, if it can: ensurepip takes longer than many installations. So it does if
    Python was installed without ensurepip (Debian without python3-venv).

    Raises:
        SetupError: neither way works.
    """
    venv = Venv(path, path.parent / f"{path.name}.log")
    if _works(venv):
        return venv
    path.parent.mkdir(parents=True, exist_ok=True)
    venv.log.write_text("", encoding="utf-8")
    command = [python, "-m", "venv", "--clear", str(path)]
    if not with_pip and _fills_from_outside():
        run([*command, "--without-pip"], title="make a virtual environment", log=venv.log)
        return venv
    try:
        run(command, title="make a virtual environment", log=venv.log)
    except SetupError:
        run([*command, "--without-pip"], title="make it without ensurepip", log=venv.log)
        if not _fills_from_outside():
            raise SetupError(
                f"{sys.executable} has neither ensurepip nor pip. Install python3-venv or pip."
            ) from None
    return venv


def _fills_from_outside() -> bool:
    """Tells whether this Python's pip can install for another one, as from 22.3 on."""
    ask = [sys.executable, "-m", "pip", "--python", sys.executable, "--version"]
    return subprocess.run(ask, capture_output=True).returncode == 0


def tracked_files() -> list[pathlib.Path]:
    """The files that git tracks, as far as they are in the working tree."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def fingerprint(*extra: str, editable: bool = False, root: pathlib.Path = ROOT) -> str:
    """A hash of everything that goes into an installation of the checkout, and of ``extra``.

    An editable installation follows the Python sources by itself; of it only the compiled parts can
    be outdated.
    """
    digest = hashlib.sha256("\0".join(extra).encode())
    files = [root / name for name in _BUILD_FILES]
    files += sorted((root / "amp_tf").rglob("*.c" if editable else "*"))
    for file in files:
        if file.is_file() and file.suffix not in (".pyc", ".so"):
            digest.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def clean_environment(**changes: str) -> dict[str, str]:
    """This process' environment without amp_tf's variables and those that change what Python loads,
    with ``changes``.

    Without PYTHONDONTWRITEBYTECODE, which containers often set, what several hundred processes of a
    test run import is compiled once instead of by each of them.
    """
    own = ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_AUTO_MIXED_PRECISION", "AMP_TF_")
    pythons = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    kept = {}
    for name, value in os.environ.items():
        if not name.startswith((*own, *pythons)):
            kept[name] = value
    return kept | changes


def _works(venv: Venv) -> bool:
    if not venv.python.exists():
        return False
    return subprocess.run([venv.python, "-c", "pass"], capture_output=True).returncode == 0
