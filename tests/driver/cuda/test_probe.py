"""Finding out whether there is a CUDA device, and what a device's PTX target is. No device is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oxide.driver.cuda import probe as cuda_probe
from oxide.driver.cuda.contexts import ptx_target


def test_a_missing_driver_library_is_a_reason_and_not_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_probe, "LIBRARY", "libcuda-that-nobody-has.so.1")

    reason = cuda_probe.unavailable_reason()

    assert not cuda_probe.available()
    assert reason is not None
    assert "libcuda-that-nobody-has.so.1" in reason
    assert "install the NVIDIA driver" in reason


def test_available_is_the_absence_of_a_reason() -> None:
    assert cuda_probe.available() == (cuda_probe.unavailable_reason() is None)


def test_asking_loads_neither_the_bindings_nor_cuda_core_where_there_is_no_driver() -> None:
    program = (
        "import sys\n"
        "from oxide.driver.cuda import probe as cuda_probe\n"
        "cuda_probe.LIBRARY = 'libcuda-that-nobody-has.so.1'\n"
        "assert not cuda_probe.available()\n"
        "print([name for name in sys.modules if name == 'cuda' or name.startswith('cuda.')])\n"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("compute_capability", "driver_version", "arch", "features"),
    [
        ((9, 0), 13000, "sm_90", "+ptx86"),
        ((9, 0), 12080, "sm_90", "+ptx86"),
        ((9, 0), 12060, "sm_90", "+ptx85"),
        ((8, 6), 12040, "sm_86", "+ptx84"),
        ((8, 0), 12000, "sm_80", "+ptx80"),
        ((7, 5), 11080, "sm_75", "+ptx78"),
        ((10, 0), 13000, "sm_100", "+ptx86"),
        ((12, 0), 13000, "sm_120", "+ptx87"),
        ((10, 3), 13000, "sm_103", "+ptx88"),
        ((11, 0), 13000, "sm_110", "+ptx90"),
        ((9, 0), 14000, "sm_90", "+ptx86"),
    ],
)
def test_the_ptx_version_is_what_the_driver_takes_and_the_architecture_needs(
    compute_capability: tuple[int, int], driver_version: int, arch: str, features: str
) -> None:
    target = ptx_target(*compute_capability, driver_version)

    assert (target.kind, target.arch, target.features) == ("ptx", arch, features)
