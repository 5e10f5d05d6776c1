"""Commands on what a search saved, without TensorFlow: ``plans``, ``explain``, ``diff``, ``report`` and ``curve``."""
