"""Run the command line: ``python -m tensoropt`` does what ``tensoropt`` does."""

import sys

from .tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
