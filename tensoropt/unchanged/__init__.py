"""Train a Keras script as it stands on several ranks: what ``tensoropt run script.py`` and :func:`tensoropt.auto` do."""
