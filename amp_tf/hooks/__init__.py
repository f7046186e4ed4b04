"""The code that touches TensorFlow's and Keras' internals: one file per patch, each reversible."""
