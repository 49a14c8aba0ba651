"""The command line: the program ``oxide``, also ``python -m oxide``. ``program.py`` lists the commands.

This is the topmost layer: it may import every other package of oxide, and none of them imports it. Only this package
imports typer and rich. A command imports the rest of oxide when it runs, so that ``oxide --help`` and ``oxide doctor``
start fast.
"""
