"""Pictures of operations and graphs as SVG, and HTML for notebooks.

``from oxide.pictures import svg``: ``svg(op)`` draws an operation before it runs, and ``svg(graph)`` a captured graph.
``op.picture()`` returns the picture as data: nodes and edges. The drawing knows nothing of operations, so any object
with a method ``picture`` can be drawn.
"""

from oxide.pictures.drawing import Drawable, Edge, Node, Picture, Sketch, svg

__all__ = ["Drawable", "Edge", "Node", "Picture", "Sketch", "svg"]
