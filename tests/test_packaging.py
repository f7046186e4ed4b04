"""The package as pip builds, installs and removes it, with no C compiler on PATH and no
TensorFlow.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.slow  # among the first: no worker comes to its end alone with a build
ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {
    "amp_tf/hooks/amp_tf_cpu.so",
    "amp_tf/hooks/amp_tf_gpu.so",
}
RUN_BY_PYTHON = {"amp_tf.pth", "amp_tf.start"}
AT_ROOT = {*RUN_BY_PYTHON, "_amp_tf_start.py"}
BUILD_REQUIREMENTS = (
    "setuptools>=77",
    "wheel",
    "ziglang>=0.13",
)  # those of pyproject.toml; tomllib is not in 3.10
ELF_MACHINE = {"x86_64": 62, "aarch64": 183}  # e_machine of the ELF header


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Makes a clone, so that the build leaves nothing behind in this checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "CHANGELOG.md", *AT_ROOT):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    (folder / "README.md").touch()  # pyproject.toml names it
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "amp_tf", folder / "amp_tf", ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """An environment without a C compiler, on which amp_tf's variables and other checkouts have no
    effect.
    """
    empty = str(tmp_path_factory.mktemp("no-compiler"))
    assert not any(shutil.which(name, path=empty) for name in ("cc", "gcc", "clang"))
    kept = {"PATH": empty, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name, value in os.environ.items():
        if not re.search("MIXED_PRECISION|AMP_TF|^PYTHONPATH$|^PATH$", name):
            kept.setdefault(name, value)
    return kept


@pytest.fixture(scope="module")
def python(tmp_path_factory, environ):
    """A Python of a new virtual environment, with the build requirements, so that they are unpacked
    only once.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip(python, environ, "install", *BUILD_REQUIREMENTS)
    return python


def pip(python, environ, *arguments):
    """Runs this environment's pip for another Python."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", *arguments]
    ended = processes.run(command, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


BUILD = """
import os, shutil, sys
import setuptools.build_meta as backend
folder = sys.argv[1]
for name in ("x86_64", "aarch64", "riscv64"):
    os.environ["AMP_TF_WHEEL_ARCH"] = name
    try:
        backend.build_wheel(f"{folder}/{name}")
    except SystemExit as error:
        print(error, file=sys.stderr)
os.environ["AMP_TF_WHEEL_ARCH"] = "x86_64"
os.environ["AMP_TF_WITHOUT_PTH"] = "1"
backend.build_wheel(f"{folder}/without")
del os.environ["AMP_TF_WITHOUT_PTH"]
source = backend.build_sdist(folder).removesuffix(".tar.gz")
shutil.unpack_archive(f"{folder}/{source}.tar.gz", folder)
os.rename(f"{folder}/{source}", f"{folder}/source")
os.chdir(f"{folder}/source")
backend.build_wheel(f"{folder}/again")
"""


@pytest.fixture(scope="module")
def built(python, checkout, environ, tmp_path_factory):
    """A folder for each architecture's wheel, and what one process said; ``scripts/test_wheel``
    lets pip build.
    """
    folder = tmp_path_factory.mktemp("built")
    with (folder / "said.txt").open("w") as said:
        subprocess.run(
            [python, "-c", BUILD, folder], env=environ, cwd=checkout, stderr=said, check=True
        )
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return wheel_in(built / "x86_64")


def wheel_in(folder):
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_builds_leave_nothing_in_the_checkout(built, checkout):
    for folder in (checkout, built / "source"):
        left = {path.name for path in folder.iterdir()}
        assert "setup.py" in left
        assert not {"build", "dist"} & left
        assert [name for name in left if name.endswith(".egg-info")] == []
        assert not list(folder.rglob("*.so"))


def machines(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {int.from_bytes(archive.read(name)[18:20], "little") for name in LIBRARIES}


def test_the_wheel_is_for_every_python_and_manylinux2014(wheel):
    assert wheel.name.split("-", 2)[2] == "py3-none-manylinux2014_x86_64.whl"
    assert machines(wheel) == {ELF_MACHINE["x86_64"]}


def recorded_in(wheel):
    """The names of a wheel's files, and those that its RECORD lists."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        rows = csv.reader(archive.read(record).decode().splitlines())
        return names, {name for name, _, _ in rows}


def test_the_wheel_holds_the_libraries_and_lists_the_switch_at_its_root(wheel):
    names, recorded = recorded_in(wheel)
    assert set(names) >= LIBRARIES | AT_ROOT
    assert recorded == set(names)
    assert len(names) == len(recorded)


def test_a_wheel_may_leave_out_what_python_runs_at_its_start(built, wheel):
    names, recorded = recorded_in(wheel_in(built / "without"))
    assert set(recorded_in(wheel)[0]) - set(names) == RUN_BY_PYTHON
    assert recorded == set(names)


def test_the_libraries_need_no_newer_glibc_than_manylinux2014(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for name in LIBRARIES:
            wanted = re.findall(rb"GLIBC_(\d+)\.(\d+)", archive.read(name))
            assert wanted
            assert max((int(major), int(minor)) for major, minor in wanted) <= (2, 17)


def test_an_architecture_can_be_asked_for_and_another_is_refused_with_the_valid_ones(built):
    wheel = wheel_in(built / "aarch64")
    assert wheel.name.endswith("-py3-none-manylinux2014_aarch64.whl")
    assert machines(wheel) == {ELF_MACHINE["aarch64"]}
    assert not list(built.glob("riscv64/*"))
    assert (
        "AMP_TF_WHEEL_ARCH: amp_tf is built for Linux on x86_64 and aarch64, not on 'riscv64'"
        in (built / "said.txt").read_text()
    )


def test_the_source_distribution_builds_the_same_wheel(built, wheel):
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(wheel_in(built / "again")) as second:
        assert set(second.namelist()) == set(first.namelist())
        for library in LIBRARIES:
            assert second.read(library) == first.read(library)


WORKS = """
import sys
print("AmpTfStart" in [type(finder).__name__ for finder in sys.meta_path])
import _amp_tf_start
_amp_tf_start.load_package()
import amp_tf
print(amp_tf.__path__[0])
from amp_tf.hooks.native import Shim
print(Shim("CPU").is_registered, Shim("GPU").is_registered)
"""


def test_install_turns_the_switch_on_and_uninstall_leaves_nothing(
    wheel, checkout, python, environ, tmp_path
):
    """From a wheel, and in its place the checkout, editable, which is built once more meanwhile.

    From a folder with an empty package of the same name, which is first on the path. A program may
    start, in another environment with the same checkout, while that is installed once more, so its
    libraries are there at every moment.
    """
    (site_packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    before = set(os.listdir(site_packages))
    (tmp_path / "amp_tf").mkdir()
    (tmp_path / "amp_tf" / "__init__.py").touch()
    variables = environ | {"PYTHONPATH": f"no folder{os.pathsep}"}
    for home, what in (
        (site_packages, [str(wheel)]),
        (checkout, ["--no-build-isolation", "-e", str(checkout)]),
    ):
        pip(python, environ, "install", "--no-deps", *what)
        assert set(os.listdir(site_packages)) >= AT_ROOT
        command = [python, "-c", WORKS]
        printed = subprocess.check_output(command, env=variables, cwd=tmp_path, text=True)
        assert printed.split() == ["True", str(home / "amp_tf"), "False", "False"]
    assert not (site_packages / "amp_tf").exists()  # pip uninstalled the wheel
    check_rebuilt(python, checkout, environ)
    pip(python, environ, "uninstall", "--yes", "amp-tf")
    left = set(os.listdir(site_packages)) - before
    assert not {name for name in left if "amp" in name}


def check_rebuilt(python, checkout, environ):
    """Builds the libraries in place, which are there at every moment."""
    numbers = {checkout / name: (checkout / name).stat().st_ino for name in LIBRARIES}
    command = [python, "setup.py", "--quiet", "build_native", "--inplace"]
    with subprocess.Popen(command, env=environ, cwd=checkout) as build:
        while build.poll() is None:
            assert all(library.exists() for library in numbers)
    assert build.returncode == 0
    for library, number in numbers.items():
        assert library.stat().st_ino != number  # it did build
