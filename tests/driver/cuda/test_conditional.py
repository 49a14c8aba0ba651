"""The CUDA driver's conditional nodes, without a GPU: which drivers have them, and the kernel that sets handles."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from oxide.driver.cuda import graph
from oxide.driver.cuda.graph import setter_params, unsupported
from oxide.driver.cuda.modules import parameter_layout

PTX = graph._CODE.image.decode()


def test_a_driver_that_is_too_old_is_told_from_others() -> None:
    assert unsupported(12040) is unsupported(13000) is None
    assert unsupported(12030) == "the NVIDIA driver supports CUDA 12.3, and conditional nodes need 12.4"


def test_the_parameters_are_those_that_the_kernel_takes() -> None:
    places, size = parameter_layout(PTX, graph._SET)
    assert struct.unpack("@QQQQ", setter_params([7], 8, 9)) == (7, 0, 8, 9)
    params = setter_params([7, 6], 8, 9)
    assert len(params) == size
    assert [params[place] for place in places] == [7, 6, 8, 9]
    names = re.search(r"\.entry oxide_set_conditional\(([^)]*)\)", PTX)
    assert names is not None
    assert re.findall(r"\.u64 (\w+)", names[1]) == ["handle", "opposite", "flag", "stop"]


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_the_kernel_assembles(arch: str, tmp_path: Path) -> None:
    source = tmp_path / "set.ptx"
    source.write_text(PTX)
    subprocess.run(["ptxas", f"-arch={arch}", "-c", source, "-o", tmp_path / "set.o"], check=True)
