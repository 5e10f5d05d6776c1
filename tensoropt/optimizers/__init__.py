"""Optimizers of training steps, on sharded parameters: those of ``tf.compat.v1.train`` and those of Keras."""
