"""Finds the smallest part of a model that has to stay in float32.

It trains the model to find it, and writes it to a file.

``amp-tf tune -- python train.py`` runs the program, which stays as it is. Its metric is a number
that it prints, or a name in the history of Keras' ``fit`` (``metrics``).
"""
