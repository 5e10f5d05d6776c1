"""Commands on ranks and machines: ``run``, ``check``, ``timeline``, ``simulate``, ``calibrate`` and ``doctor``."""
