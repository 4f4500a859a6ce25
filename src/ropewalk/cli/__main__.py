"""`python -m ropewalk.cli` is `ropewalk`."""

import sys

from ropewalk.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
