"""Files of reports: JSON, and the page (one HTML file that needs no network).

A file is written whole or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import html
import json
import os
import shlex
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from amp_tf.errors import FileError, first_line
from amp_tf.files import read_regular
from amp_tf.graph.layers import layer_of

AnyPath = str | Path
Document = Mapping[str, Any]
Row = dict[str, Any]  #: a part of a document, by the names of its fields
KIND = "amp_tf.report"  #: of documents
SCHEMA_VERSION = 1
_MOST_READ = 256 << 20  #: bytes of a report; one with 50,000 nodes has 12 MB
# Limits of an unpacked archive: weights hardly compress, and Keras does not try.
_MOST_UNPACKED = 256 << 20  # bytes
_MOST_TIMES = 20  # times its size
_PAGES = (".html", ".htm")


def save(document: Document, path: AnyPath) -> None:
    """Writes a document: a page if the name ends in ``.html``, JSON if it ends in ``.json``.

    Raises:
        FileError: the name ends in neither.
        OSError: the file cannot be written; it keeps its content.
    """
    suffix = Path(path).suffix
    if suffix in _PAGES:
        write(path, page([document]))
    elif suffix == ".json":
        write(path, to_json([document]))
    else:
        raise FileError(
            "what to write is not known",
            where=str(path),
            fix=(
                "Name a file that ends in .html for a page, or in .json for the data; "
                "print(report) shows the text"
            ),
        )


def to_json(documents: Sequence[Document]) -> str:
    """Returns a document as JSON; several as a list."""
    if len(documents) == 1:
        return json.dumps(documents[0])
    return json.dumps(list(documents))


def write(path: AnyPath, content: str | bytes) -> None:
    """Writes a file that the user named; an existing file is replaced only by a complete one.

    A link's target is replaced; pipes and devices are written to. Raises an OSError where it cannot
    be written.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        Path(path).write_bytes(_encoded(content))
    else:
        put(Path(os.path.realpath(path)), content)


def put(path: Path, content: str | bytes) -> None:
    """Writes a file under a name of amp_tf's own.

    A link or a pipe in that place is replaced, not followed. After an OSError nothing of the new
    content is there.
    """
    staged = temporary_name(path)
    try:
        with staged.open("xb") as file:
            file.write(_encoded(content))
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, staged)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def put_plain(path: Path, content: Any) -> None:
    """Writes JSON under a name of amp_tf's own."""
    put(path, json.dumps(content))


def read_plain(path: Path) -> Any:
    """Reads a file of :func:`put_plain`; returns ``None`` where there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return json.loads(path.read_text())
    return None


def check_writable(path: AnyPath) -> None:
    """Raises a FileError where :func:`write` could not write a file that the user named."""
    place = Path(os.path.realpath(path))
    with writing(path):
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if place.is_file():
            place.open("ab").close()
        if place.is_file() or not place.exists():
            tempfile.TemporaryFile(dir=place.parent).close()


def temporary_name(path: Path) -> Path:
    """Makes a random name beside a file or folder, where nobody can have placed a link."""
    return path.with_name(f".amp_tf-{os.urandom(8).hex()}.tmp")


def _encoded(content: str | bytes) -> bytes:
    if isinstance(content, str):
        return content.encode(errors="backslashreplace")  # bytes of odd file names
    return content


@contextlib.contextmanager
def naming(path: AnyPath, what: str, fix: str) -> Iterator[None]:
    """Turns an OSError inside the block into a FileError that names the file."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{what} ({error.strerror or error})", where=str(path), fix=fix) from None


def writing(
    path: AnyPath, fix: str = "Name a file that can be written"
) -> contextlib.AbstractContextManager[None]:
    """Turns an OSError of writing a file into a FileError that names it."""
    return naming(path, "cannot be written", fix)


def check_unpacked(path: AnyPath) -> None:
    """Checks a zip or HDF5 file before another library reads it.

    Raises:
        FileError: it holds damaged HDF5 or no model, or would need far more memory than its size.
    """
    if zipfile.is_zipfile(path):
        # A bad zip is reported by its reader.
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            # No more of a file is unpacked than its directory says.
            _check_size(path, sum(entry.file_size for entry in archive.infolist()))
            for name in archive.namelist():
                if name.endswith(".h5"):
                    with archive.open(name) as file:
                        _check_size(path, _size_of_arrays(path, file))
    elif Path(path).suffix == ".h5":
        _check_size(path, _size_of_arrays(path, path))
    elif Path(path).suffix == ".keras":
        raise FileError(
            "holds no Keras model", where=str(path), fix="Save it again: model.save('….keras')"
        )


def _check_size(path: AnyPath, unpacked: int) -> None:
    size = os.path.getsize(path)
    if unpacked > _MOST_UNPACKED and unpacked > _MOST_TIMES * size:
        raise FileError(
            f"its {size:,} bytes would become {unpacked:,}",
            where=str(path),
            fix="If you trust it, write it again without compression (a zip by zip -0)",
        )


def _size_of_arrays(path: AnyPath, file: Any) -> int:
    """Sums the bytes of all arrays of an HDF5 file by their shapes; none is read."""
    import h5py

    sizes = []

    def note(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            sizes.append((item.size or 0) * item.dtype.itemsize)

    try:
        with h5py.File(file, "r") as opened:
            opened.visititems(note)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"holds no HDF5 that can be read ({first_line(error)})",
            where=str(path),
            fix="Save it again",
        ) from None
    return sum(sizes)


def read(path: AnyPath) -> list[Row]:
    """Reads the documents of a JSON file.

    Raises:
        FileError: it cannot be read, is not a regular file, holds no document, or is of a later
            version of amp_tf.
    """
    fix = "Name a file that AMP_TF_REPORT or amp_tf.report().save(…) wrote"
    with naming(path, "cannot be read", fix):
        content = read_regular(path, _MOST_READ)
    try:
        documents = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FileError(f"is not JSON ({error})", where=str(path), fix=fix) from None
    if not isinstance(documents, list):
        documents = [documents]
    for document in documents or [None]:  # an empty list is no report, either
        if not isinstance(document, dict) or document.get("schema") != KIND:
            raise FileError("holds no report of amp_tf", where=str(path), fix=fix)
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise FileError(
                f"is of version {version!r}, and this amp_tf reads {SCHEMA_VERSION}",
                where=str(path),
                fix="Read it with a newer amp_tf",
            )
    found: list[Row] = documents
    return found


_FRAME = "width: 100%; height: 36rem; border: 0"
_SCRIPTS = ("common.js", "report.js", "nodes.js", "page.js")


def page(documents: Sequence[Document]) -> str:
    """Renders a page of one report, or of several side by side."""
    shown = []
    for document in documents:
        graphs = []
        for graph in document["graphs"]:
            # A short list for each node: so 50,000 nodes fit into 2 MB.
            graphs.append({**graph, "nodes": list(map(_short, graph["nodes"]))})
        shown.append({**document, "graphs": graphs, "title": title(document)})
    name = title(documents[0])
    if len(shown) > 1:
        name = f"{len(shown)} runs"
    return _page_of(f"amp_tf: {name}", shown)


def fragment(document: Document) -> str:
    """Renders the view of a notebook, in a frame of its own, so that its style stays there.

    It shows the top of a report: main figure, counts and blockers.
    """
    name = "amp_tf report"
    graphs = [{**graph, "nodes": [], "inserted_casts": []} for graph in document["graphs"]]
    whole = html.escape(_page_of(name, [{**document, "graphs": graphs}], is_part=True))
    return f'<iframe srcdoc="{whole}" title="{name}" style="{_FRAME}"></iframe>'


def title(document: Document) -> str:
    """Returns the name of the program that a report is of, without its folder."""
    program = str(document["process"].get("program", ""))
    try:
        words = shlex.split(program)
    except ValueError:  # an older report, in which nothing is quoted
        words = program.split()
    if not words:
        return "a rewrite"
    first, *arguments = words
    return " ".join([Path(first).name or first, *arguments])


def _page_of(name: str, documents: Sequence[Document], *, is_part: bool = False) -> str:
    data = json.dumps({"documents": documents, "isPart": is_part}, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(data.encode(), 9)).decode()
    scripts = "".join(f"<script>{_resource(script)}</script>" for script in _SCRIPTS)
    skip = '<a class="skip" href="#main">To the report</a>'
    if is_part:
        skip = ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(name)}</title><style>{_resource('style.css')}</style></head>"
        f'<body>{skip}<main id="main"><noscript>This page needs JavaScript; the JSON file has it '
        "all.</noscript></main>"
        f'<script type="application/octet-stream" id="documents">{packed}</script>'
        f"{scripts}</body></html>\n"
    )


def _short(node: Document) -> list[Any]:
    """Returns the part of a node's row that report.js reads."""
    work = node.get("operations", 0.0)
    if work is not None:
        work = round(work * (node.get("runs") or 1.0))
    is_f16 = int(node["precision"] != "float32")
    layer = node.get("layer") or layer_of(node["name"])
    return [node["name"], node["op"], is_f16, node["reason"], node.get("cause"), work, layer]


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(f"page/{name}").read_text(encoding="utf-8")
