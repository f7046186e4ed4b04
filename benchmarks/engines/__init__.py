"""The engines that start TensorFlow's workers for people, each with an unchanged training script under the variable."""
