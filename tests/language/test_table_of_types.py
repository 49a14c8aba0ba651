"""The table of types in ``oxide/language/types.py``: it is the only list of types, and its entries agree with NumPy and
``ml_dtypes``."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oxide.language import narrow
from oxide.language.types import NARROW, SCALARS, ScalarType
from tests.reach import ROOT

NAMES = {*SCALARS, *(scalar.dtype_name for scalar in SCALARS.values())}
OF_LLVM = {"i8", "i16", "i32", "i64"}  # these alone are LLVM's types
ENOUGH = 3
EXCEPTIONS = {
    "oxide/__init__.py": "a static type checker and a star import read the public names",
    "oxide/compiler/tile/ir.py": "the types that the code itself computes with",
    "oxide/compiler/frontend/lowering/complex_numbers.py": "the types that a c64 holds: a rule of promotion",
    "oxide/compiler/frontend/lowering/total_builder.py": "the suffixes of LLVM's intrinsics",
    "oxide/compiler/primitives/table.py": "the types that numba-cuda's rule of floats knows",
    "oxide/compiler/interpreter/tensor.py": "the types in which NumPy sums products",
    "oxide/driver/records.py": "the fields of records, which are ctypes",
    "oxide/interop/dlpack.py": "DLPack's own enumeration",
    "oxide/runtime/launching/building.py": "the words of a copy, of any type",
    "oxide/runtime/operations/strided_copy.py": "the words of a copy, of any type",
}


def names_in(node: ast.AST) -> set[str]:
    """Returns the types that a literal lists: as names, as strings, or as a string of names."""
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return set().union(*map(names_in, parts))
        case ast.Dict(keys=keys, values=values):
            return set().union(*(names_in(part) for part in (*keys, *values) if part is not None))
        case ast.Starred(value=inside):
            return names_in(inside)
        case ast.Constant(value=str(text)) if set(text.split()) <= NAMES:
            return set(text.split())
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in NAMES:
            return {name}
    return set()


def lists_of(path: Path) -> Iterator[str]:
    """Yields the place and the types of each literal with several types."""
    for node in ast.walk(ast.parse(path.read_text())):
        found = names_in(node)
        if len(found) >= ENOUGH and not found <= OF_LLVM:
            yield f"line {getattr(node, 'lineno', '?')}: {' '.join(sorted(found))}"


def test_there_is_no_other_list_of_types() -> None:
    found = {str(path.relative_to(ROOT)): [*lists_of(path)] for path in sorted((ROOT / "oxide").rglob("*.py"))}
    others = {path: lists for path, lists in found.items() if lists and path not in EXCEPTIONS}
    assert not others, "ask the table in oxide/language/types.py"
    assert [path for path in EXCEPTIONS if not found.get(path)] == [], "these need no exception"


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=str)
def test_an_entry_agrees_with_its_dtype(scalar: ScalarType) -> None:
    assert scalar.dtype.itemsize * 8 == scalar.bits
    assert scalar.dtype.name == scalar.dtype_name
    if scalar.numpys is not None:
        assert scalar.dtype.kind == scalar.kind
    if scalar.kind in "iu":
        info = np.iinfo(scalar.dtype)
        assert scalar.limits == (info.min, info.max)


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=str)
def test_a_type_equals_its_dtype(scalar: ScalarType) -> None:
    other = SCALARS["i8" if scalar.name != "i8" else "u8"]
    found = [scalar == scalar.dtype, scalar.dtype == scalar, scalar != other, scalar != other.dtype]
    assert found == [True] * 4
    assert (scalar != scalar.dtype, scalar.dtype != scalar, scalar == other.dtype) == (False, False, False)


@pytest.mark.parametrize("scalar", NARROW.values(), ids=str)
def test_the_bits_of_a_narrow_float_are_those_of_its_dtype(scalar: ScalarType) -> None:
    every = np.arange(2**scalar.bits).astype(scalar.bits_dtype)
    with np.errstate(invalid="ignore"):
        numbers = every.view(scalar.dtype).astype(np.float64)
    found = [narrow.number_of(scalar.name, int(bits)) for bits in every]
    np.testing.assert_array_equal(np.array(found), numbers)
    assert np.array_equal(np.signbit(found), np.signbit(numbers))
    known = [(int(bits), number) for bits, number in zip(every, found, strict=True) if not math.isnan(number)]
    assert all(narrow.bits_of(scalar.name, number) == bits for bits, number in known)
    finite = [number for _, number in known if math.isfinite(number)]
    assert max(finite) == scalar.greatest
    assert min(number for number in finite if number > 0) == 2.0**scalar.least
    assert any(math.isinf(number) for _, number in known) == scalar.has_infinity


def test_the_book_lists_the_types() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text()
    assert f"| {' '.join(f'`{name}`' for name in SCALARS)} |" in text
    for name, scalar in NARROW.items():
        module = "ml_dtypes" if scalar.ml_dtypes else "np"
        exponent, fraction = scalar.bits - scalar.precision, scalar.precision - 1
        assert f"| `{name}` | `{module}.{scalar.dtype_name}` | {exponent}, {fraction} | " in text
