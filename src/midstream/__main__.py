"""Run the command line with `python -m midstream`."""

import sys

from midstream.cli.main import main

sys.exit(main())
