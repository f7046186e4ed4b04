"""Does what amp_tf.pth does, then lets the user's own sitecustomize run.

Python imports the first ``sitecustomize`` on its path at every start (documentation of the ``site``
module). This one precedes the user's, so it finds and executes that one as if it were not here
itself.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# Off this process' path, so that nothing else is found here; PYTHONPATH keeps it for the children.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]

_OURS = os.path.realpath(os.path.dirname(os.path.dirname(_HERE)))
_home = next(
    (path for path in sys.path if os.path.realpath(os.path.join(path, "amp_tf")) == _OURS), None
)
# A Python of another environment is left alone.
if "_amp_tf_start" in sys.modules or _home is not None:
    # First on the path, because others may have modules of these names, as in the current folder.
    sys.path.insert(0, _home or _HERE)
    import _amp_tf_start

    del sys.path[0]
    _amp_tf_start.install()
    if "_AMP_TF_TOOL" in os.environ:  # of amp-tf compare, tune and time -- python …
        _amp_tf_start.load_package()
        importlib.import_module("amp_tf.tools.starting").install()

_users = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _users is not None and _users.loader is not None:
    _module = importlib.util.module_from_spec(_users)
    sys.modules["sitecustomize"] = _module
    _users.loader.exec_module(_module)
