"""What all tests share."""

import os

from hypothesis import settings

# TensorFlow's notices about its build would hide what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Other work on the machine must not fail a property.
settings.register_profile("tensoropt", deadline=None)
settings.load_profile("tensoropt")
