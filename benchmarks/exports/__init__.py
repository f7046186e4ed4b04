"""Where a model that was trained in mixed precision can be taken: every format, beside float32 and Keras' policy."""
