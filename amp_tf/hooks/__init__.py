"""The code that touches TensorFlow's and Keras' internals: one file per patch, each reversible.

``registry`` lists the patches, ``switch`` turns them on and off and follows the variables, ``imports`` waits for
libraries, and ``patches`` replaces attributes. ``process/`` is not a patch: it has the state and the messages
of the whole process. ``comparison/`` is the debugger behind ``amp-tf compare -- python train.py``.
"""
