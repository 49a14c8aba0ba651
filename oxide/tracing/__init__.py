"""Timelines and profiles: records what tasks submit and what devices run.

``trace`` writes a file for ui.perfetto.dev, and ``profile`` makes a table.
"""

from oxide.tracing.profiles import Profile, ProfileRow
from oxide.tracing.sessions import Trace, profile, trace

__all__ = ["Profile", "ProfileRow", "Trace", "profile", "trace"]
