"""Automatic loss scaling: the patches of Keras 3, tf_keras, TF1 and hand-written loops."""
