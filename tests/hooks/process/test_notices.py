"""How the hooks speak: as absl would print it, and without taking the program's own logging from it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from amp_tf.hooks.process import notices
from tests.hooks import running

BAD_VALUE = {running.SWITCH: "maybe"}
LINE = (
    "WARNING:absl:amp_tf: stays off, the program runs in float32: TF_ENABLE_AUTO_MIXED_PRECISION: 'maybe' is not a "
    "valid value. Valid values: 1, true, 0, false."
)
AT_EXIT = "amp_tf: 0 graphs, 0 of 0 nodes converted, 0 casts: amp_tf is off: TF_ENABLE_AUTO_MIXED_PRECISION: 'maybe'"


def test_a_program_that_sets_up_its_logging_after_the_import_gets_its_file(site_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.log"
    code = (
        "import tensorflow, logging\n"
        f"logging.basicConfig(filename={str(file)!r}, format='%(message)s')\n"
        "logging.warning('of the program')\n"
    )
    ended = running.run(["-c", code], site_folder, BAD_VALUE)
    assert ended.status == 0
    own, at_exit = file.read_text().splitlines()
    assert own == "of the program"
    assert at_exit.startswith(AT_EXIT)
    assert [line for line in ended.err.splitlines() if "amp_tf" in line] == [LINE]


def test_a_program_that_set_up_its_logging_before_gets_the_line_there(site_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.log"
    code = f"import logging; logging.basicConfig(filename={str(file)!r}); import tensorflow"
    ended = running.run(["-c", code], site_folder, BAD_VALUE)
    assert ended.status == 0
    line, at_exit = file.read_text().splitlines()
    assert line == LINE
    assert at_exit.removeprefix("INFO:absl:").startswith(AT_EXIT)
    assert "amp_tf" not in ended.err


def test_a_filter_of_absls_logger_is_asked(site_folder: Path) -> None:
    code = "from absl import logging; logging.get_absl_logger().addFilter(lambda record: False); import tensorflow"
    assert "amp_tf" not in running.run(["-c", code], site_folder, BAD_VALUE).err


def test_a_warning_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    notices.forget()
    assert notices.warn_once("key", "it broke", where="here", fix="Mend it")
    assert not notices.warn_once("key", "it broke", where="there", fix="Mend it")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "amp_tf: here: it broke. Mend it.")
    ]
    notices.forget()
