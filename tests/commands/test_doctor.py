"""``oxide doctor``: each trouble of an installation is found, and comes with its fix."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from oxide.commands import doctor as diagnosis
from oxide.commands.doctor import Finding, Trial
from oxide.commands.machine import CudaDriver, Gpu, nvidia_cards
from oxide.commands.program import main
from oxide.host import core
from tests.commands.command_line import ROOT, oxide
from tests.commands.fake_driver import fake_driver
from tests.conftest import cuda_device_count

H100 = Gpu(0, "NVIDIA H100", (9, 0), 80 << 30)
NEW = CudaDriver((13, 0), "580.159.04", (H100,), None)
NONE = CudaDriver(None, "", (), "libcuda.so.1 cannot be loaded")


def findings(text: str) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(text)["findings"]}


def distribution(folder: Path, name: str, version: str) -> None:
    """Makes a folder in which Python finds the metadata of a package, before those that are installed."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_machine_where_kernels_run(tmp_path: Path) -> None:
    ran = oxide("doctor", cwd=tmp_path, OXIDE_DEVICE="")
    assert ran.status == 0, ran.out + ran.err
    assert "\x1b" not in ran.out
    lines = ran.out.splitlines()
    assert "ok      kernel on cpu: compiled and run, with the right result" in lines
    assert lines[-1].startswith("kernels run here")
    assert any(line.startswith("ok      packages: ") and "numba-cuda 0.30" in line for line in lines)
    if cuda_device_count():
        assert "ok      kernel on cuda:0: compiled and run, with the right result" in lines
    else:
        driver = next(
            number for number, line in enumerate(lines) if line.startswith("warning driver: no NVIDIA driver")
        )
        assert "        fix: none is needed for the CPU device" in lines[driver + 1]


@pytest.mark.nightly
def test_numpy_that_is_too_new_a_cache_that_cannot_be_written_and_a_misspelt_variable(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    distribution(packages, "numpy", "2.5.0")
    (packages / "sitecustomize.py").write_text("import numpy\ndel numpy.row_stack\n")  # as in NumPy 2.5
    (tmp_path / "file").touch()
    inside_a_file = str(tmp_path / "file" / "cache")
    ran = oxide(
        "doctor",
        "--json",
        cwd=tmp_path,
        PYTHONPATH=str(packages),
        OXIDE_CACHE_DIR=inside_a_file,
        OXIDE_DEVICES="cpu",
    )
    assert ran.status == 1, ran.err
    found = findings(ran.out)
    assert json.loads(ran.out)["status"] == "failed"
    assert found["numpy"] == {
        "name": "numpy",
        "status": "failed",
        "found": "2.5.0 is installed; oxide needs numpy<2.5,>=2.0",
        "fix": "python -m pip install 'numpy<2.5,>=2.0'",
    }
    assert found["cache"]["status"] == "failed"
    assert inside_a_file in found["cache"]["found"]
    assert "set OXIDE_CACHE_DIR" in found["cache"]["fix"]
    assert found["kernel on cpu"]["status"] == "failed"
    assert "'numpy' has no attribute 'row_stack'" in found["kernel on cpu"]["found"]
    assert "install the versions that oxide needs" in found["kernel on cpu"]["fix"]
    assert found["OXIDE_DEVICES"]["status"] == "warning"
    assert "is OXIDE_DEVICE meant?" in found["OXIDE_DEVICES"]["found"]


def test_it_also_runs_where_the_package_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('numpy is broken here')\n")
    program = (str(ROOT / "oxide_command.py"),)
    ran = oxide("doctor", cwd=tmp_path, program=program, PYTHONPATH=str(tmp_path))
    assert ran.status == 1
    assert "`import oxide` fails: ImportError: numpy is broken here" in ran.err
    assert "failed  kernel on cpu: ImportError: numpy is broken here" in ran.out
    ran = oxide("inspect", "oxide_kernels:relu", cwd=tmp_path, program=program, PYTHONPATH=str(tmp_path))
    assert (ran.status, ran.out) == (1, "")
    assert "run `oxide doctor`, which says why" in ran.err


@pytest.mark.nightly
def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    ran = oxide("doctor", "--json", cwd=tmp_path, **fake_driver(tmp_path / "driver", version=12040))
    assert ran.status == 1, ran.err
    found = findings(ran.out)
    assert found["driver"]["status"] == "failed"
    assert found["driver"]["found"].endswith("supports CUDA 12.4; oxide needs CUDA 13.0")
    assert "install the NVIDIA driver, release 580 or later" in found["driver"]["fix"]
    assert found["cuda:0"]["found"] == "Simulated GPU, compute capability 9.0, 80.0 GiB"
    assert "kernel on cuda:0" not in found  # it could not run


@pytest.mark.nightly
def test_a_gpu_that_is_seen_and_runs_nothing(tmp_path: Path) -> None:
    ran = oxide("doctor", cwd=tmp_path, **fake_driver(tmp_path / "driver"))
    assert ran.status == 1, ran.err
    assert "ok      cuda:0: Simulated GPU, compute capability 9.0, 80.0 GiB" in ran.out
    assert "failed  kernel on cuda:0: " in ran.out
    assert "see whether nvidia-smi and other CUDA programs work" in ran.out
    assert ran.out.splitlines()[-1] == "1 to fix"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with an H100 on which everything works."""
    monkeypatch.setattr(diagnosis, "cuda_driver", lambda: NEW)
    monkeypatch.setattr(diagnosis, "nvidia_cards", lambda: 1)
    monkeypatch.setattr(diagnosis, "try_kernel", lambda kind, number: Trial())
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(diagnosis, "_libdevice", lambda: Path("/cuda/libdevice.10.bc"))
    return monkeypatch


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    status = main(["doctor", "--json"])
    return status, findings(capsys.readouterr().out)


def test_a_gpu_on_which_all_is_well(simulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = doctor(capsys)
    assert status == 0
    assert {each["status"] for name, each in found.items() if name != "core"} == {"ok"}
    assert found["core"]["status"] == ("ok" if core.FORM == "C" else "warning")
    assert found["driver"]["found"] == "580.159.04, supports CUDA 13.0"
    assert "kernel on cuda:0" in found


def test_no_libdevice(simulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    simulated.setattr(diagnosis, "_libdevice", lambda: None)
    status, found = doctor(capsys)
    assert status == 0  # kernels run, those that call functions of math excepted
    assert found["libdevice"]["status"] == "warning"
    assert "sin, exp" in found["libdevice"]["found"]
    assert "pip install 'nvidia-nvvm>=13,<14'" in found["libdevice"]["fix"]


def test_a_cache_that_others_may_write_to_and_one_that_is_off(
    simulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    simulated.setenv("OXIDE_CACHE_DIR", str(shared))
    status, found = doctor(capsys)
    assert status == 1
    assert "others may write to it" in found["cache"]["found"]
    assert f"chmod 700 {shared}" in found["cache"]["fix"]
    simulated.setenv("OXIDE_CACHE", "0")
    status, found = doctor(capsys)
    assert status == 0
    assert (found["cache"]["status"], found["cache"]["fix"]) == ("warning", "unset OXIDE_CACHE")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_only_be_read(
    simulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    status, found = doctor(capsys)
    assert status == 1
    assert "nothing can be written to" in found["cache"]["found"]


@pytest.mark.parametrize(
    ("driver", "cards", "asked", "status", "fix"),
    [
        (NONE, 0, "", "warning", "none is needed for the CPU device"),
        (NONE, 1, "", "failed", "install the NVIDIA driver"),
        (NONE, 0, "cuda", "failed", "install the NVIDIA driver"),
        (CudaDriver((13, 0), "", (), "the NVIDIA driver sees no device"), 1, "", "failed", "CUDA_VISIBLE_DEVICES"),
        (CudaDriver((13, 0), "", (), "the NVIDIA driver sees no device"), 0, "", "warning", "CUDA_VISIBLE_DEVICES"),
        (CudaDriver((12, 4), "550.1", (H100,), None), 1, "", "failed", "release 580 or later"),
        (NEW, 1, "", "ok", ""),
    ],
)
def test_what_a_driver_needs(driver: CudaDriver, cards: int, asked: str, status: str, fix: str) -> None:
    finding = next(diagnosis.gpus(driver, cards, asked, bindings=13))
    assert (finding.name, finding.status) == ("driver", status)
    assert fix in finding.fix


def test_the_ptx_of_a_gpu_may_need_a_newer_driver_than_cuda_bindings_do() -> None:
    blackwell = Gpu(0, "RTX PRO 6000", (12, 0), 96 << 30)
    driver = CudaDriver((12, 7), "565.57", (blackwell,), None)
    assert diagnosis.needed_cuda(driver, 12) == (12, 8)
    assert "release 570 or later" in next(diagnosis.gpus(driver, 1, "", 12)).fix
    assert not diagnosis.too_old(CudaDriver((12, 7), "", (H100,), None), 12)


@pytest.mark.parametrize(("capability", "status"), [((3, 5), "failed"), ((7, 5), "warning"), ((8, 0), "ok")])
def test_what_a_gpu_has(capability: tuple[int, int], status: str) -> None:
    driver = CudaDriver((13, 0), "", (Gpu(0, "a GPU", capability, 1 << 30),), None)
    _, gpu = diagnosis.gpus(driver, 1, "", 13)
    assert gpu.status == status
    assert bool(gpu.fix) == (status != "ok")


def test_every_variable_of_the_book_is_known() -> None:
    table = (ROOT / "docs" / "devices.md").read_text().partition("## The environment")[2]
    named = dict.fromkeys(re.findall(r"`(OXIDE_[A-Z_]+)", table), "")
    assert len(named) > 15
    assert {each.name for each in diagnosis.variables(named)} == {"variables"}


def versions(required: list[str], installed: Mapping[str, str]) -> Iterator[Finding]:
    return diagnosis.versions(required, installed.get)


def test_versions_that_fit_and_that_do_not() -> None:
    required = ["numpy>=2.0,<2.5", "trio>=0.27", "llvmlite>=0.50,<0.51", "pytest>=9; extra == 'test'"]
    found = {each.name: each for each in versions(required, {"numpy": "2.4.1", "llvmlite": "0.49.0"})}
    assert found["packages"].found == "numpy 2.4.1"
    assert found["trio"].found == "it is not installed; oxide needs trio>=0.27"
    assert found["llvmlite"].found == "0.49.0 is installed; oxide needs llvmlite<0.51,>=0.50"
    assert set(found) == {"packages", "trio", "llvmlite"}
    (unknown,) = diagnosis.versions(None, {}.get)
    assert (unknown.status, unknown.fix.startswith("python -m pip install -e")) == ("warning", True)


def test_a_kernel_that_never_ends_and_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "had not ended after 0.01 s" in diagnosis.try_kernel("cpu", 0, seconds=0.01).error

    def dies(*command: Any, **options: Any) -> Any:
        return diagnosis.subprocess.CompletedProcess([], -11, "", "")

    monkeypatch.setattr(diagnosis.subprocess, "run", dies)
    assert diagnosis.try_kernel("cpu", 0).error == "its process was ended by signal 11"


def test_cards_on_the_bus_are_counted_without_a_driver(tmp_path: Path) -> None:
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000"), ("0x10de", "0x030000")]
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
    assert nvidia_cards(tmp_path) == 2
