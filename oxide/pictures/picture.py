"""The data of a picture: nodes, and edges between them, without positions and colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

NodeKind = Literal["launch", "copy", "memory", "host", "join", "graph", "unknown"]
"""The kind of a node, in the order above: a kernel's launch; a copy or a collective; device memory, given or filled; a
host function or host data; an operation that only combines others; the launch of a graph, or a conditional in a graph;
an operation of which nothing more is known before it runs."""

EdgeKind = Literal["data", "order", "wait"]
"""The kind of an edge. ``"data"``: the target uses a result of the source. ``"order"``: the target runs after the
source. ``"wait"``: as ``"data"``, and the target's stream waits for the source's stream."""


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A node: ``title`` names it, and ``details`` are lines below the title. ``stream`` names the stream or the device
    that the node runs on, and is empty if the picture has only one."""

    key: int
    kind: NodeKind
    title: str
    details: tuple[str, ...] = ()
    stream: str = ""


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two nodes, given by their keys. ``label`` describes the data that flows along the edge."""

    source: int
    target: int
    label: str = ""
    kind: EdgeKind = "data"


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges, with a title and with notes that are written below the drawing."""

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
        """Adds an edge between two nodes that were added before, given by their keys. Raises ``ValueError`` if no node
        has such a key."""
        if not (0 <= source < len(self._nodes) and 0 <= target < len(self._nodes)):
            raise ValueError(f"an edge from {source} to {target}: the picture has {len(self._nodes)} nodes")
        self._edges[Edge(source, target, label, kind)] = None

    def __len__(self) -> int:
        return len(self._nodes)

    def picture(self, title: str, notes: tuple[str, ...] = ()) -> Picture:
        """Returns the picture of all that was added."""
        return Picture(title, tuple(self._nodes), tuple(self._edges), notes)
