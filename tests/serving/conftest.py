"""Both event loops, for tests that take ``run``."""

from tests.runtime.awaiting.conftest import run as run
