"""Translates Python to LLVM IR through numba-cuda's typing and lowering. Only this package imports numba."""

from oxide.host.uninterrupted import import_whole

import_whole("numba.cuda")
