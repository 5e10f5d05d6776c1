"""Commands that search: ``search``, ``compare`` and ``recommend``."""
