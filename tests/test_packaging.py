"""The package as pip builds, installs and removes it, with no C compiler on PATH and no TensorFlow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {
    "amp_tf/hooks/amp_tf_cpu.so",
    "amp_tf/hooks/amp_tf_gpu.so",
    "amp_tf/graph/amp_tf_wire.so",
}
AT_ROOT = {"amp_tf.pth", "_amp_tf_start.py"}
BUILD_REQUIREMENTS = ("setuptools>=77", "wheel", "ziglang>=0.13")  # those of pyproject.toml; tomllib is not in 3.10
ELF_MACHINE = {"x86_64": 62, "aarch64": 183}  # e_machine of the ELF header


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone holds, so that the build leaves nothing behind in this checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    names = ["setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "CHANGELOG.md", "README.md", *AT_ROOT]
    for name in names:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    (folder / "README.md").touch()  # pyproject.toml names it
    shutil.copytree(ROOT / "amp_tf", folder / "amp_tf", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without a C compiler, on which amp_tf's variables and other checkouts have no effect."""
    empty = tmp_path_factory.mktemp("no-compiler")
    keep = {name: value for name, value in os.environ.items() if "MIXED_PRECISION" not in name and "AMP_TF" not in name}
    keep.pop("PYTHONPATH", None)
    assert all(shutil.which(name, path=str(empty)) is None for name in ("cc", "gcc", "clang"))
    return keep | {"PATH": str(empty), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Path:
    """A Python of a new virtual environment, with the build requirements, so that they are unpacked only once more."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    pip(python, environ, "install", "--quiet", *BUILD_REQUIREMENTS)
    return python


def pip(python: Path | str, environ: dict[str, str], *arguments: str) -> None:
    ended = subprocess.run(
        [str(python), "-m", "pip", *arguments], env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def build(python: Path | str, checkout: Path, environ: dict[str, str], folder: Path, *options: str) -> Path:
    pip(python, environ, "wheel", "--quiet", "--no-deps", *options, "--wheel-dir", str(folder), str(checkout))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(checkout: Path, environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as ``pip wheel .`` makes it, with the build requirements that pip itself fetches."""
    folder = tmp_path_factory.mktemp("wheel")
    return build(sys.executable, checkout, environ | {"AMP_TF_WHEEL_ARCH": "x86_64"}, folder)


@pytest.mark.usefixtures("wheel")
def test_the_build_leaves_nothing_in_the_checkout(checkout: Path) -> None:
    left = {path.name for path in checkout.iterdir()}
    assert "setup.py" in left
    assert not {"build", "dist"} & left
    assert [name for name in left if name.endswith(".egg-info")] == []


def machines(wheel: Path) -> set[int]:
    with zipfile.ZipFile(wheel) as archive:
        return {int.from_bytes(archive.read(name)[18:20], "little") for name in LIBRARIES}


def test_the_wheel_is_for_every_python_and_manylinux2014(wheel: Path) -> None:
    assert wheel.name.split("-", 2)[2] == "py3-none-manylinux2014_x86_64.whl"
    assert machines(wheel) == {ELF_MACHINE["x86_64"]}


def test_the_wheel_holds_the_libraries_and_lists_the_switch_at_its_root(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        (record_name,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        recorded = {line.rpartition(",")[0].rpartition(",")[0] for line in archive.read(record_name).decode().split()}
    assert set(names) >= LIBRARIES | AT_ROOT
    assert recorded == set(names)
    assert len(names) == len(set(names))


def test_the_libraries_need_no_newer_glibc_than_manylinux2014(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in LIBRARIES:
            wanted = {part.split(b"\0")[0] for part in archive.read(name).split(b"GLIBC_")[1:]}
            versions = {tuple(int(number) for number in version.split(b".")) for version in wanted}
            assert versions
            assert max(versions) <= (2, 17)


def test_an_architecture_can_be_asked_for(
    python: Path, checkout: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    wheel = build(python, checkout, environ | {"AMP_TF_WHEEL_ARCH": "aarch64"}, tmp_path, "--no-build-isolation")
    assert wheel.name.endswith("-py3-none-manylinux2014_aarch64.whl")
    assert machines(wheel) == {ELF_MACHINE["aarch64"]}


def test_another_architecture_is_refused_with_the_valid_ones(
    python: Path, checkout: Path, environ: dict[str, str]
) -> None:
    ended = subprocess.run(
        [str(python), "setup.py", "build_native", "--inplace"],
        env=environ | {"AMP_TF_WHEEL_ARCH": "riscv64"},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "AMP_TF_WHEEL_ARCH: amp_tf is built for Linux on x86_64 and aarch64, not on 'riscv64'" in ended.stderr


def test_the_libraries_are_there_at_every_moment_of_a_build(
    python: Path, checkout: Path, environ: dict[str, str]
) -> None:
    """A program may start, in another environment with the same checkout, while that is installed once more."""
    command = [str(python), "setup.py", "--quiet", "build_native", "--inplace"]
    subprocess.run(command, env=environ, cwd=checkout, check=True)
    before = {checkout / name: (checkout / name).stat().st_ino for name in LIBRARIES}
    missing = set()
    with subprocess.Popen(command, env=environ, cwd=checkout) as build:
        while build.poll() is None:
            missing.update(library.name for library in before if not library.exists())
    assert build.returncode == 0
    assert not missing
    assert all(library.stat().st_ino != number for library, number in before.items())  # it did build


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_install_turns_the_switch_on_and_uninstall_leaves_nothing(
    kind: str, wheel: Path, checkout: Path, python: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """From a folder with an empty package of the same name, which is first on the path."""
    (site_packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    before = set(os.listdir(site_packages))
    pip(
        python,
        environ,
        "install",
        "--quiet",
        "--no-deps",
        *([str(wheel)] if kind == "wheel" else ["-e", str(checkout)]),
    )
    assert set(os.listdir(site_packages)) >= AT_ROOT
    code = (
        "import sys; print('AmpTfStart' in [type(finder).__name__ for finder in sys.meta_path])\n"
        "import _amp_tf_start; _amp_tf_start.load_package()\n"
        "from amp_tf.hooks.native import Shim; print(Shim('CPU').is_registered, Shim('GPU').is_registered)"
    )
    (tmp_path / "amp_tf").mkdir()
    (tmp_path / "amp_tf" / "__init__.py").touch()
    command = [str(python), "-c", code]
    for value, started in (("", "True"), ("1", "False")):
        variables = environ | {"AMP_TF_DISABLE": value, "PYTHONPATH": f"no folder{os.pathsep}"}
        printed = subprocess.check_output(command, env=variables, cwd=tmp_path, text=True)
        assert printed.split() == [started, "False", "False"]
    pip(python, environ, "uninstall", "--quiet", "--yes", "amp-tf")
    left = set(os.listdir(site_packages)) - before
    assert not {name for name in left if "amp" in name}


def test_the_source_distribution_builds_the_same_wheel(
    python: Path, checkout: Path, wheel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    code = "import setuptools.build_meta as backend, sys; print(backend.build_sdist(sys.argv[1]))"
    command = [str(python), "-c", code, str(tmp_path)]
    name = subprocess.check_output(command, env=environ, cwd=checkout, text=True).split()[-1]
    shutil.unpack_archive(tmp_path / name, tmp_path)
    source = tmp_path / name.removesuffix(".tar.gz")
    assert not list(source.rglob("*.so"))
    again = build(python, source, environ | {"AMP_TF_WHEEL_ARCH": "x86_64"}, tmp_path, "--no-build-isolation")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert set(second.namelist()) == set(first.namelist())
        for library in LIBRARIES:
            assert second.read(library) == first.read(library)
