"""Which locked versions an advisory of OSV's format affects, and what is said of a copy that is empty."""

import json
import pathlib
import sys
import zipfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))

import advisories

LOCK = """# made by hand
Some.Package==1.10.0 ; python_version >= "3.12" \\
    --hash=sha256:00
other==2.0 \\
    --hash=sha256:00
"""


def advisory(
    *, name: str = "some-package", versions: tuple[str, ...] = (), events: tuple[dict, ...] = (), **more: str
) -> dict:
    ranges = [{"type": "GIT", "events": [{"introduced": "0"}]}, {"type": "ECOSYSTEM", "events": list(events)}]
    package = {"ecosystem": "PyPI", "name": name}
    affected = [{"package": package, "versions": list(versions), "ranges": ranges}]
    return {"id": "PYSEC-1", "published": "2026-05-04T03:02:01Z", "affected": affected} | more


def look_up(folder: pathlib.Path, *found: dict) -> advisories.Audit:
    (folder / "requirements.cpu.txt").write_text(LOCK)
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for number, one in enumerate(found):
            archive.writestr(f"{number}.json", json.dumps(one))
    return advisories.audit(folder / "all.zip", folder / "requirements.cpu.txt")


@pytest.mark.parametrize(
    ("entry", "hit"),
    [
        ({"versions": ("1.10",)}, True),  # the same version, written shorter
        ({"versions": ("1.1", "1.9")}, False),
        ({"versions": ("not a version",)}, False),
        ({"events": ({"introduced": "0"},)}, True),  # never mended
        ({"events": ({"introduced": "0"}, {"fixed": "1.9"})}, False),  # 1.9 is older than 1.10
        ({"events": ({"introduced": "0"}, {"fixed": "1.10.0"})}, False),
        ({"events": ({"introduced": "0"}, {"fixed": "1.10.1"})}, True),
        ({"events": ({"introduced": "0"}, {"last_affected": "1.10.0"})}, True),
        ({"events": ({"introduced": "0"}, {"last_affected": "1.9"})}, False),
        ({"events": ({"introduced": "1.11"},)}, False),
        ({"events": ({"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.10"}, {"fixed": "1.12"})}, True),
        ({"events": ({"introduced": "build r12"},)}, True),  # whatever is no version is rather reported
        ({"events": ({"introduced": "build r12"}, {"fixed": "1.9"})}, False),
        ({"events": ({"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "build r12"}, {"fixed": "1.12"})}, True),
        ({"events": ({"introduced": "0"}, {"last_affected": "1.2"}, {"introduced": "build r12"})}, True),
        ({"events": ({"introduced": "0"}, {"fixed": "build r12"})}, True),
        ({"events": ({"introduced": "0"},), "name": "another"}, False),
        ({"events": ({"introduced": "0"},), "withdrawn": "2026-06-01T00:00:00Z"}, False),
    ],
)
def test_an_advisory_holds_for_the_versions_that_its_format_says(
    tmp_path: pathlib.Path, entry: dict, hit: bool
) -> None:
    expected = ("requirements.cpu.txt: some-package 1.10.0 has PYSEC-1",) if hit else ()
    assert look_up(tmp_path, advisory(**entry)).known == expected


def test_the_answer_tells_how_much_was_looked_up_and_how_old_the_copy_is(tmp_path: pathlib.Path) -> None:
    old = advisory(name="another", published="2020-01-01T00:00:00Z")
    answer = str(look_up(tmp_path, advisory(name="another"), old))
    assert answer == "2 requirements looked up in a copy of 2 advisories, the newest of 2026-05-04: none known"


def test_an_empty_copy_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="holds no advisory"):
        look_up(tmp_path)
