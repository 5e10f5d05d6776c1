"""Run a script on this rank; see :mod:`.script`."""

import sys

from .script import main

if __name__ == "__main__":
    main(sys.argv[1:])
