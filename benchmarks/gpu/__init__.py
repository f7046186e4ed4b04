"""What mixed precision makes of training steps for GPUs, seen on a machine that has none.

    python -m benchmarks.gpu grappler --models convnet,resnet50,gnmt,bert

TensorFlow's graph optimizers take their knowledge of devices from a *cluster*, which may be one that is only described.
So its whole meta optimizer runs here as for GPUs of a compute capability, with amp_tf's real plugin in it, and the
graphs that come out tell what would have run: products by type and layout, Transposes, casts. They tell no times.

TensorFlow's own pass converts what has a GPU kernel in the running TensorFlow, and ``tensorflow-cpu`` has none: its
rows need ``pip install tensorflow==2.21.0`` (2 GB, without CUDA's libraries and without a GPU). All else runs with
either.
"""
