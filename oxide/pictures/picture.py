"""The data of a picture: nodes, and edges between them. It says nothing of positions or colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

NodeKind = Literal["launch", "copy", "memory", "host", "join", "graph", "unknown"]
"""A kernel's launch; a copy between host and device or on a device; device memory, given or filled; a function on the
host; operations that only combine others; a captured graph's launch; an operation of which nothing more is known before
it runs."""

EdgeKind = Literal["data", "order", "wait"]
"""A result that flows; the order of one stream; a wait of one stream for another."""


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A node: ``title`` names it, and ``details`` are lines below the title. ``stream`` names the stream or the device
    that it runs on, and is empty if the picture has only one."""

    key: int
    kind: NodeKind
    title: str
    details: tuple[str, ...] = ()
    stream: str = ""


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two nodes, given by their keys. ``label`` says what flows along it."""

    source: int
    target: int
    label: str = ""
    kind: EdgeKind = "data"


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges, with a title and with notes that stand below the drawing."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...] = ()


class Drawable(Protocol):
    """An object that has a picture."""

    def picture(self) -> Picture:
        """Returns the object's picture."""


@final
class Sketch:
    """Collects the nodes and edges of a picture."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._edges: dict[Edge, None] = {}  # in order; two equal edges are one

    def node(self, kind: NodeKind, title: str, details: tuple[str, ...] = (), stream: str = "") -> int:
        """Adds a node and returns its key."""
        self._nodes.append(Node(len(self._nodes), kind, title, details, stream))
        return len(self._nodes) - 1

    def edge(self, source: int, target: int, label: str = "", kind: EdgeKind = "data") -> None:
        """Adds an edge between two nodes that were added before. Raises ``ValueError`` for any other key."""
        if not (0 <= source < len(self._nodes) and 0 <= target < len(self._nodes)):
            raise ValueError(f"an edge from {source} to {target}: the picture has {len(self._nodes)} nodes")
        self._edges[Edge(source, target, label, kind)] = None

    def __len__(self) -> int:
        return len(self._nodes)

    def picture(self, title: str, notes: tuple[str, ...] = ()) -> Picture:
        """Returns the picture of all that was added."""
        return Picture(title, tuple(self._nodes), tuple(self._edges), notes)
