"""The command line: the program ``oxide``, also ``python -m oxide``. One file is one command.

The topmost layer: it may use all of the package, and nothing of the package imports it. typer and rich are imported
here alone. A command imports what it needs when it runs, so that ``oxide --help`` and ``oxide doctor`` start fast.
"""
