"""A drawing is a well-formed SVG in which nothing overlaps, whatever the nodes and edges are."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from oxide.pictures import Edge, Node, Picture, Sketch, svg
from oxide.pictures.layout import Place, arrange

SVG = "{http://www.w3.org/2000/svg}"


def random_picture(seed: int) -> Picture:
    generator = random.Random(seed)
    sketch = Sketch()
    kinds = ("launch", "copy", "memory", "host", "join", "graph", "unknown")
    for number in range(generator.randint(1, 40)):
        details = tuple("detail " * generator.randint(0, 12) for _ in range(generator.randint(0, 3)))
        key = sketch.node(generator.choice(kinds), f"node {number}", details, generator.choice(("", "a", "b")))
        for _ in range(generator.randint(0, 3) if key else 0):
            label = "flows " * generator.randint(0, 5)
            sketch.edge(generator.randrange(key), key, label.strip(), generator.choice(("data", "order", "wait")))
    return sketch.picture(f"picture {seed}", ("a note",))


def rectangles(root: ElementTree.Element, group: str) -> list[tuple[float, float, float, float]]:
    """The left, top, right and bottom of the boxes of the nodes or labels."""
    found = []
    for element in root.iter(f"{SVG}g"):
        if element.get("class", "").split()[:1] == [group]:
            box = element.find(f"{SVG}rect")
            assert box is not None
            x, y, width, height = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_boxes_and_labels_stand_apart_inside_of_the_picture(seed: int) -> None:
    picture = random_picture(seed)
    root = ElementTree.fromstring(svg(picture))
    boxes = rectangles(root, "node")
    labels = rectangles(root, "label")
    assert len(boxes) == len(picture.nodes)
    assert len(labels) == sum(bool(edge.label) for edge in picture.edges)
    for one, other in combinations([*boxes, *labels], 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for left, top, right, bottom in [*boxes, *labels]:
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height


@pytest.mark.parametrize("seed", range(30))
def test_every_edge_goes_down(seed: int) -> None:
    picture = random_picture(seed)
    sizes = [(50.0, 20.0)] * len(picture.nodes)
    edges = [(edge.source, edge.target) for edge in picture.edges]
    layout = arrange(sizes, edges, [None] * len(edges))
    for source, target in edges:
        assert layout.nodes[source].y + 20 < layout.nodes[target].y
    for (source, target), route in zip(edges, layout.routes, strict=True):
        assert route[0] is layout.nodes[source]
        assert route[-1] is layout.nodes[target]
        assert [place.rank for place in route] == list(range(route[0].rank, route[-1].rank + 1))


def test_a_crossing_that_can_be_avoided_is_avoided() -> None:
    layout = arrange([(40.0, 20.0)] * 6, [(0, 4), (1, 5), (2, 3)], [None] * 3)
    tops = sorted(layout.nodes[:3], key=lambda place: place.x)
    below: dict[int, Place] = {id(route[0]): route[-1] for route in layout.routes}
    assert [below[id(place)].x for place in tops] == sorted(place.x for place in layout.nodes[3:])


def test_a_chain_is_straight() -> None:
    layout = arrange([(40.0, 20.0), (90.0, 20.0), (20.0, 20.0)], [(0, 1), (1, 2)], [None, (70.0, 12.0)])
    assert len({round(place.x, 6) for place in layout.nodes}) == 1


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        arrange([(1.0, 1.0)] * 2, [(0, 1), (1, 0)], [None, None])


def test_an_edge_to_no_node_is_refused() -> None:
    sketch = Sketch()
    sketch.node("launch", "one")
    with pytest.raises(ValueError, match="from 0 to 1: the picture has 1 nodes"):
        sketch.edge(0, 1)


def test_any_text_is_escaped() -> None:
    names = "<b>&\"'\x00\ud800]]></title><script>alert(1)</script>"
    picture = Picture(names, (Node(0, "launch", names, (names,), names), Node(1, "copy", "x")), (Edge(0, 1, names),))
    drawn = svg(picture)
    ElementTree.fromstring(drawn)
    assert "<script" not in drawn
    drawn.encode()


def test_long_lines_are_shortened_and_the_tooltip_has_them_whole() -> None:
    long = "a" * 500
    root = ElementTree.fromstring(svg(Picture("t", (Node(0, "launch", long),), ())))
    (box,) = rectangles(root, "node")
    assert box[2] - box[0] < 600
    assert any((title.text or "") == long for title in root.iter(f"{SVG}title"))


def test_a_picture_without_nodes_is_a_title() -> None:
    root = ElementTree.fromstring(svg(Picture("nothing", (), ())))
    assert [text.text for text in root.iter(f"{SVG}text")] == ["nothing"]


@pytest.mark.parametrize("thing", [3, "op", Picture, None])
def test_what_has_no_picture_is_refused(thing: object) -> None:
    with pytest.raises(TypeError, match="svg draws an operation, a CudaGraph or a Picture, not"):
        svg(thing)  # type: ignore[arg-type]


def test_streams_have_colours_of_their_own() -> None:
    nodes = tuple(Node(number, "launch", "k", (), f"stream {number % 3}") for number in range(6))
    root = ElementTree.fromstring(svg(Picture("t", nodes, ())))
    bars = [element.findall(f"{SVG}rect")[1].get("fill") for element in root.iter(f"{SVG}g") if element.get("class")]
    assert len(bars) == 6
    assert len(set(bars)) == 3
    assert bars[:3] == bars[3:]
