"""Train functions that return a loss, or are a training step, without a Keras model."""
