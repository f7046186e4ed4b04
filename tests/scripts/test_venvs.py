"""The environments that the scripts make: what makes them be made again, and what a failure says."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))

import venvs


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "amp_tf").mkdir()
    (tmp_path / "amp_tf" / "a.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


def test_fingerprint_follows_the_sources(checkout: pathlib.Path) -> None:
    before = venvs.fingerprint(root=checkout)
    assert venvs.fingerprint(root=checkout) == before
    (checkout / "amp_tf" / "a.py").write_text("x = 2\n")
    assert venvs.fingerprint(root=checkout) != before


def test_fingerprint_of_an_editable_installation_follows_what_is_compiled(checkout: pathlib.Path) -> None:
    (checkout / "amp_tf" / "shim.c").write_text("int x;")
    before = venvs.fingerprint(editable=True, root=checkout)
    (checkout / "amp_tf" / "a.py").write_text("x = 3\n")
    assert venvs.fingerprint(editable=True, root=checkout) == before
    (checkout / "amp_tf" / "shim.c").write_text("int y;")
    assert venvs.fingerprint(editable=True, root=checkout) != before


def test_fingerprint_leaves_out_what_the_build_makes(checkout: pathlib.Path) -> None:
    before = venvs.fingerprint(root=checkout)
    (checkout / "amp_tf" / "shim.so").write_bytes(b"\x7fELF")
    (checkout / "amp_tf" / "a.pyc").write_bytes(b"")
    assert venvs.fingerprint(root=checkout) == before


def test_fingerprint_follows_extra_words(checkout: pathlib.Path) -> None:
    assert venvs.fingerprint("2.16", root=checkout) != venvs.fingerprint("2.21", root=checkout)


def test_failed_command_ends_with_its_last_lines(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", "print('no room on the disk'); raise SystemExit(3)"]
    with pytest.raises(venvs.SetupError, match=r"(?s)try it: status 3\. The last lines of .*no room on the disk"):
        venvs.run(command, title="try it", log=tmp_path / "log.txt")


def test_clean_environment_drops_the_switches_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_ENABLE_AUTO_MIXED_PRECISION", "AMP_TF_PRECISION", "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    environment = venvs.clean_environment(AMP_TF_PRECISION="bfloat16")
    assert {name for name in environment if "AMP" in name or "MIXED" in name} == {"AMP_TF_PRECISION"}
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert "AMP_TF_PRECISION" in os.environ


def test_environment_is_made_and_made_again_when_broken(tmp_path: pathlib.Path) -> None:
    venv = venvs.make(tmp_path / "venv")
    venv.write_stamp("installed")
    assert venvs.make(tmp_path / "venv").read_stamp() == "installed"
    venv.python.unlink()
    assert venvs.make(tmp_path / "venv").read_stamp() == ""


def test_the_metadata_of_a_checkout_is_no_installation(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the demo installed twice where an earlier build had left its metadata in the checkout."""
    (tmp_path / "not_installed.egg-info").mkdir()
    (tmp_path / "not_installed.egg-info" / "PKG-INFO").write_text("Name: not-installed\nVersion: 1.0\n")
    monkeypatch.chdir(tmp_path)
    venv = venvs.Venv(pathlib.Path(sys.prefix), tmp_path / "log.txt")
    assert venv.version_of("not-installed") == ""
    assert venv.version_of("pytest") == pytest.__version__
