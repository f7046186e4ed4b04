"""Files are written whole or not at all, and not through what somebody else laid in their way."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import h5py
import pytest

from amp_tf.errors import FileError, GraphError
from amp_tf.reporting import files


def test_no_temporary_name_can_be_known_before(tmp_path: Path) -> None:
    assert files.temporary_name(tmp_path / "out") != files.temporary_name(tmp_path / "out")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for kind in ("tmp", "old"):
        (tmp_path / f"out.{os.getpid()}.{kind}").symlink_to(victim)
    files.write(tmp_path / "out", "new")
    assert ((tmp_path / "out").read_text(), victim.read_text()) == ("new", "kept")


def test_what_a_link_of_the_users_points_to_is_replaced_and_has_the_mode_that_it_had(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    files.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe"])
def test_under_a_name_of_ours_links_and_pipes_are_replaced(kind: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    ours = tmp_path / "ours"
    if kind == "pipe":
        os.mkfifo(ours)
    else:
        ours.symlink_to("victim" if kind == "link" else "nowhere")
    files.put(ours, "new")
    assert not ours.is_symlink()
    assert (ours.read_text(), (tmp_path / "victim").read_text()) == ("new", "kept")
    assert stat.S_IMODE(ours.stat().st_mode) == stat.S_IMODE((tmp_path / "victim").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "victim"]


def test_a_pipe_of_the_shells_is_written_to() -> None:
    reading, writing = os.pipe()
    files.write(f"/dev/fd/{writing}", "text")
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "text"


def test_where_there_is_no_room_nothing_is_left(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    (tmp_path / "old").write_text("old")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        for name in ("new", "old"):
            with (
                pytest.raises(GraphError, match=f"{name}: cannot be written"),
                files.writing(tmp_path / name),
            ):
                files.write(tmp_path / name, "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "old")]


@pytest.mark.parametrize("is_bomb", [True, False])
@pytest.mark.parametrize("name", ["a.zip", "a.h5", "a.weights.h5", "a.keras"])
def test_a_small_file_that_would_take_much_memory_is_not_unpacked(
    name: str, is_bomb: bool, tmp_path: Path
) -> None:
    inner = tmp_path / (name if name.endswith(".h5") else "model.weights.h5")
    megabytes = 300 if is_bomb else 30
    with h5py.File(inner, "w") as file:  # no chunk is written, so that it has but zeros
        for layer in ("a", "b"):
            file.create_dataset(
                f"{layer}/vars/0", (megabytes << 17,), "float32", compression="gzip"
            )
    if inner.name != name:
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            if name == "a.keras":
                archive.write(inner, inner.name)
            else:
                archive.writestr("zeros", bytes(megabytes << 20))
    if is_bomb:
        with pytest.raises(
            GraphError,
            match=rf"{name}: its [\d,]+ bytes would become 314,572,800\. If you trust it",
        ):
            files.check_unpacked(tmp_path / name)
    else:
        files.check_unpacked(tmp_path / name)


def test_what_is_no_zip_is_left_to_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_text("no zip")
    files.check_unpacked(tmp_path / "no.zip")


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + bytes(100), b"no HDF5"])
@pytest.mark.parametrize("name", ["a.h5", "a.keras"])
def test_damaged_hdf5_is_one_error(name: str, content: bytes, tmp_path: Path) -> None:
    if name == "a.keras":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("model.weights.h5", content)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(
        GraphError, match=rf"{name}: holds no HDF5 that can be read \(.+\)\. Save it again"
    ):
        files.check_unpacked(tmp_path / name)


@pytest.mark.parametrize("name", ["report.txt", "report", "report.pdf"])
def test_a_name_that_says_neither_page_nor_data_is_refused(tmp_path, name):
    with pytest.raises(FileError, match=r"what to write is not known.*\.html.*\.json"):
        files.save({}, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "title"),
    [
        ("", "a rewrite"),
        ("model/", "model"),
        ("'/home/my models/resnet/'", "resnet"),
        ("'/home/my files/train it.py' --lr 1", "train it.py --lr 1"),
        ("/home/train.py --name it's", "train.py --name it's"),  # of an older report
        ("/", "/"),
    ],
)
def test_the_title_of_a_report_is_its_program_without_the_folder(program: str, title: str) -> None:
    assert files.title({"process": {"program": program}}) == title
