"""amp_tf against the C++ pass.

TensorFlow reads its log level when it is imported, so it is set before any test is.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
