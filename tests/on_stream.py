"""A scheduling policy for tests that mean one stream."""

from __future__ import annotations

from typing import final

import oxide


@final
class On:
    """Everything goes on the stream given."""

    def __init__(self, stream: oxide.Stream) -> None:
        self.stream = stream

    def next_stream(self, _: oxide.Device) -> oxide.Stream:
        return self.stream
