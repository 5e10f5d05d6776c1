"""Trace a Python function over tensors and variables to a recorded graph: Keras models and ``tf.function`` come this way."""
