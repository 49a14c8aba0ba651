"""The benchmarks' own promises: contenders take turns, wrong results are found before timing, peers may be missing."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import report
from benchmarks.harness import Contender, Session, Unavailable, WrongResult, expect, peer
from benchmarks.native_loop import NativeLoop


@pytest.fixture
def session() -> Session:
    made = Session("cuda", quick=True, seconds=60)
    made.group = "launch"
    return made


def always(time: float, check: Callable[[], None] = lambda: None) -> Callable[[], Contender]:
    return lambda: Contender(lambda: [time], check)


def refuse(error: Exception) -> Callable[[], None]:
    def check() -> None:
        raise error

    return check


def test_contenders_take_turns_after_the_warm_up(session: Session) -> None:
    turns: list[str] = []

    def contender(name: str) -> Contender:
        return Contender(lambda: [float(turns.append(name) or len(turns))], lambda: None)

    compared = session.compare("turns", {name: lambda name=name: contender(name) for name in "ab"}, turns=3, warmup=1)
    assert "".join(turns) == "abababab"
    assert compared.figures["a"].count == 3
    assert compared.figures["a"].best == 3  # the first turn of each was the warm-up


def test_a_short_time_ends_the_turns_but_leaves_the_least(session: Session) -> None:
    session.seconds = 0
    assert session.compare("short", {"a": always(1)}, turns=50, least=4).figures["a"].count == 4


def test_a_wrong_result_is_reported_and_not_timed(session: Session) -> None:
    compared = session.compare("x", {"oxide": always(1), "peer": always(0.1, refuse(WrongResult("off by one")))})
    assert compared.wrong == {"peer": "off by one"}
    assert list(compared.figures) == ["oxide"]
    assert session.wrong


@pytest.mark.nightly
def test_an_oxide_that_raises_is_wrong_and_a_peer_that_raises_is_skipped(session: Session) -> None:
    broken = refuse(RuntimeError("broken"))
    assert not session.compare("x", {"peer": always(1, broken)}).wrong
    assert not session.wrong
    assert session.compare("x", {"oxide eager": always(1, broken)}).wrong == {"oxide eager": "RuntimeError: broken"}
    assert session.wrong


@pytest.mark.nightly
def test_a_peer_that_raises_in_its_turn_is_skipped_from_there_on(session: Session) -> None:
    times = iter([1.0, 2.0])
    closed: list[str] = []

    def peer() -> Contender:
        return Contender(lambda: [next(times)], lambda: None, lambda: closed.append("peer"))

    compared = session.compare("x", {"peer": peer, "oxide": always(1)}, turns=5, warmup=1)
    assert compared.skipped["peer"].startswith("StopIteration")
    assert list(compared.figures) == ["oxide"]
    assert compared.figures["oxide"].count == 5
    assert closed == ["peer"]
    with pytest.raises(RuntimeError, match="lost"):
        session.compare("x", {"oxide": lambda: Contender(refuse(RuntimeError("lost")), lambda: None)})


@pytest.mark.nightly
def test_a_peer_that_is_not_installed_is_skipped_by_name(session: Session) -> None:
    def missing() -> Contender:
        peer("no_such_library_at_all", "no-such-library")
        raise AssertionError

    compared = session.compare("x", {"oxide": always(1), "missing": missing})
    assert compared.skipped == {"missing": "no-such-library is not installed"}
    assert not session.wrong


@pytest.mark.nightly
def test_what_a_refused_contender_holds_is_given_back(session: Session) -> None:
    closed: list[str] = []
    for name, error in (("a", WrongResult("x")), ("b", Unavailable("y"))):
        check = refuse(error)
        session.compare("x", {name: lambda c=check, n=name: Contender(lambda: [1.0], c, lambda: closed.append(n))})
    assert closed == ["a", "b"]


def test_claims_are_judged_on_a_gpu_only_and_never_change_the_exit_code(session: Session) -> None:
    session.claim("fast", 3.0, "at most", 2.0)
    session.claim("gain", 3.0, "at least", 2.0)
    session.claim("unmeasured", None, "at most", 2.0)
    assert report.claims(session) == "FAIL  fast: 3 (at most 2)\nPASS  gain: 3 (at least 2)"
    assert not session.wrong
    on_cpu = Session("cpu", quick=True, seconds=1)
    on_cpu.claim("fast", 3.0, "at most", 2.0)
    assert not on_cpu.claims


@pytest.mark.parametrize("found", [[1.0, 2.1], [1.0, np.nan], [1.0]])
def test_expect_refuses_what_differs(found: list[float]) -> None:
    expect([1.0, 2.0], np.array([1.0, 2.0]))
    with pytest.raises(WrongResult):
        expect(found, np.array([1.0, 2.0]))


def test_the_native_loop_launches_as_often_as_asked_and_stops_at_a_failure() -> None:
    calls: list[tuple[int, ...]] = []
    statuses = iter([0, 0, 0, 0, 719])
    number, pointer = ctypes.c_uint32, ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[number] * 7, pointer, pointer, pointer)

    def launch(*arguments: int) -> int:
        calls.append(arguments)
        return next(statuses)

    callback = signature(launch)
    address = ctypes.cast(callback, pointer).value
    assert address is not None
    loop = NativeLoop(address, 0x10, 3, 32, 0x20, 0x30)
    loop.run(4)
    assert calls == [(0x10, 3, 1, 1, 32, 1, 1, 0, 0x20, None, 0x30)] * 4
    with pytest.raises(RuntimeError, match="719"):
        loop.run(4)
    assert len(calls) == 5


def test_a_wrong_result_makes_the_command_fail_and_a_time_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = False

    def run(session: Session) -> None:
        check = refuse(WrongResult("no such sum")) if wrong else lambda: None
        session.compare("x", {"oxide": always(1e9), "peer": always(1, check)}, series="s", x=1)

    monkeypatch.setenv("OXIDE_DEVICE", "cpu")  # which the command sets
    monkeypatch.setattr(command, "import_module", lambda _: SimpleNamespace(run=run))
    assert command.main(["--quick", "launch", "--device", "cpu"]) == 0
    wrong = True
    assert command.main(["--quick", "launch", "--device", "cpu", "--output", str(tmp_path), "--name", "here"]) == 1
    assert "WRONG: no such sum" in capsys.readouterr().out
    folder = tmp_path / "here"
    assert {file.name for file in folder.iterdir()} == {"run.json", "page.md"}
    record = json.loads((folder / "run.json").read_text())
    assert record["comparisons"][0]["wrong"] == {"peer": "no such sum"}
    page = (folder / "page.md").read_text()
    assert "| peer | WRONG: no such sum |" in page
    if find_spec("matplotlib"):
        assert command.main(["--redraw", str(folder / "run.json")]) == 0
        drawn = (folder / "page.md").read_text()
        plots = re.findall(r"\]\((.+\.svg)\)", drawn)
        assert plots
        assert all((folder / plot).exists() for plot in plots)
    else:
        with pytest.raises(SystemExit):
            command.main(["--redraw", str(folder / "run.json")])
        assert (folder / "page.md").read_text() == page


@pytest.mark.parametrize(
    "text",
    [
        *(None, "{", "[]", "[" * 100_000, '{"claims": []}', '{"claims": [], "comparisons": [{"unit": "s"}]}'),
        '{"claims": [], "comparisons": [{"group": "g", "title": "t", "unit": "s", "figures": []}]}',
        '{"claims": [], "comparisons": [], "device": "d"}',
    ],
    ids=["none", "text", "list", "deep", "no comparisons", "no title", "no figures", "no machine"],
)
def test_what_is_no_run_is_not_drawn(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit):
        command.main(["--redraw", str(file)])
    assert str(file) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file] * (text is not None)


def test_a_run_that_is_kept_has_its_record_and_its_page_and_no_pictures() -> None:
    folders = [path for path in command.RESULTS.iterdir() if path.is_dir()]
    assert folders
    for folder in folders:
        assert {"run.json", "page.md"} <= {file.name for file in folder.iterdir()}
        assert ".svg)" not in (folder / "page.md").read_text(encoding="utf-8")


def test_a_quick_run_judges_no_claim_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(session: Session) -> None:
        session.device = "cuda"  # as if: claims are a GPU's
        session.claim("fast", 3.0, "at most", 2.0)

    monkeypatch.setenv("OXIDE_DEVICE", "cpu")
    monkeypatch.setattr(command, "import_module", lambda _: SimpleNamespace(run=run))
    assert command.main(["launch", "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert "FAIL  fast: 3 (at most 2)" in capsys.readouterr().out
    assert command.main(["launch", "--device", "cpu", "--quick"]) == 0
    assert re.search("FAIL|PASS|not how fast", capsys.readouterr().out)[0] == "not how fast"  # type: ignore[index]


@pytest.mark.nightly
def test_a_group_that_breaks_fails_the_command_and_the_next_one_still_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> SimpleNamespace:
        def run(session: Session) -> None:
            if name.endswith("launch"):
                raise RuntimeError("no luck")
            session.compare("fine", {"oxide": always(1)})

        return SimpleNamespace(run=run)

    monkeypatch.setenv("OXIDE_DEVICE", "cpu")
    monkeypatch.setattr(command, "import_module", load)
    assert command.main(["--quick", "launch", "cpu", "--device", "cpu"]) == 1
    assert re.search("BROKEN: RuntimeError: no luck.*fine", capsys.readouterr().out, re.DOTALL)


def test_an_unknown_group_is_refused_with_the_names_of_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["lunch"])
    assert "there is no group 'lunch'; there are launch, completion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "/dev/null"], "the results cannot be written to"),
        (["--output", "/dev/null/results"], "the results cannot be written to"),
        (["--name", "a/b"], "'a/b' is no name of a folder"),
        (["--name", "../b"], "'../b' is no name of a folder"),
        (["--name", "b" * 300], "the results cannot be written to"),
        (["--seconds", "nan"], "nan is no time to measure for"),
        (["--seconds", "-1"], "-1 is no time to measure for"),
        (["--seconds", "soon"], "soon is no time to measure for"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_measured(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "import_module", lambda name: pytest.fail(f"{name} was measured"))
    if "--output" not in arguments:
        arguments = [*arguments, "--output", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        command.main(["--quick", "kernels", "--device", "cpu", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_says_what_broke_and_that_the_run_was_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(session: Session) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(command, "import_module", lambda name: SimpleNamespace(run=broken))
    assert command.main(["--quick", "kernels", "--device", "cpu", "--output", str(tmp_path), "--name", "run"]) == 1
    page = (tmp_path / "run" / "page.md").read_text(encoding="utf-8")
    assert "BROKEN, not measured to its end: kernels: RuntimeError: no luck" in page
    assert "A quick run" in page
    assert "Core: " in page
    err = capsys.readouterr().err
    assert "BROKEN: kernels" in err
    assert "WRONG RESULTS" not in err
