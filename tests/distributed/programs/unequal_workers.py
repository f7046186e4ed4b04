"""Workers that each have variables of their own: ``unequal_workers.py '[{...}, {...}]' script arguments``."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"

if __name__ == "__main__":
    each = json.loads(sys.argv[1])
    if "TF_CONFIG" in os.environ:
        os.environ.update(each[json.loads(os.environ["TF_CONFIG"])["task"]["index"]])
        sys.argv[:] = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        sys.path.insert(0, str(SCRIPTS))
        import loopback

        sys.exit(loopback.run_cluster({"worker": len(each)}, [__file__, *sys.argv[1:]]))
