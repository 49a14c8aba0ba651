"""``python -m oxide``: the program ``oxide``. See ``oxide/commands`` and the book's page on the command line."""

from __future__ import annotations

import sys

from oxide.commands.program import main

if __name__ == "__main__":
    sys.exit(main())
