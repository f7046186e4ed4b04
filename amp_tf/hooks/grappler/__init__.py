"""The plugin that TensorFlow's graph optimizer calls: the C shim and its Python side."""
