"""Timelines and profiles: records what tasks submit and what devices run.

``trace`` writes a file for ui.perfetto.dev, and ``profile`` makes a table.
"""

from oxide.tracing.profiles import Profile, ProfileRow, profile
from oxide.tracing.traces import Trace, trace

__all__ = ["Profile", "ProfileRow", "Trace", "profile", "trace"]
