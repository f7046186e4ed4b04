"""``python -m amp_tf script.py args…``: runs a script with amp_tf on.

For environments whose .pth files are not read. Also ``python -m amp_tf -m module args…``, and the
commands of ``amp-tf``.
"""

from __future__ import annotations

import sys

from amp_tf.cli.run import run_script

if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:]))
