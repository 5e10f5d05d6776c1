"""From a Python function over tensors and variables to a recorded graph: the door for Keras models and ``tf.function``."""
