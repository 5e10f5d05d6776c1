"""``python -m tensoropt`` is ``tensoropt``."""

import sys

from .tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
