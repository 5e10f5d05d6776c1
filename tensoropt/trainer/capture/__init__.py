"""Capture a Keras model with its loss and metrics, or a user's own step, as programs for one batch size."""
