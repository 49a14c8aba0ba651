"""Timelines and profiles: records what tasks submit and what devices run.

``trace`` writes a file for ui.perfetto.dev, ``profile`` makes a table, and ``page`` draws a trace file as one HTML or
SVG page.
"""

from oxide.tracing.pages import page
from oxide.tracing.profiles import Profile, ProfileRow
from oxide.tracing.sessions import Trace, profile, trace

__all__ = ["Profile", "ProfileRow", "Trace", "page", "profile", "trace"]
