"""The code that touches TensorFlow's and Keras' internals: one file per patch, each reversible.

``switch`` lists the patches, turns them on and off and follows the variables, ``imports`` waits for
libraries, ``internals`` and ``reads`` list what is touched, and ``patches`` replaces attributes.
``state``, ``notices``, ``summary`` and ``report_files`` patch nothing: they hold the state and
the messages of the process.
"""
