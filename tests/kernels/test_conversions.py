"""Each conversion in the library's kernels changes their code; one that does not is noise."""

from __future__ import annotations

import pytest

from tests.kernels.conversions import KERNELS, PACKAGE, conversions, noise


@pytest.mark.nightly
@pytest.mark.parametrize("module", KERNELS)
def test_each_conversion_changes_the_code_of_a_kernel(module: str) -> None:
    assert [f"{each.module}.py:{each.line}: {each.text}" for each in noise(module)] == []


def test_each_module_with_conversions_has_kernels_that_show_them() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert {module for module in modules if conversions(module)} <= KERNELS.keys() <= modules


@pytest.mark.parametrize("module", ["gemm"])
def test_a_conversion_is_left_out_of_its_module_alone(module: str) -> None:
    (found,) = conversions(module)
    source = (PACKAGE / f"{module}.py").read_text()
    assert found.text == "i64(k)"
    assert found.without == source.replace("i64(k)", "(k)")
