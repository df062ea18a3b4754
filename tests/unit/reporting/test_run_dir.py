"""The run directory keeps what was written, and is never taken for another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunix_core.errors import CheckpointError, UsageError
from tunix_core.reporting import RunDir
from tunix_core.reporting.run_dir import readable
from tunix_core.types import Failure, Message, SampleId, Score, Task, TokenSpan, ToolCall, Trajectory


def started(path: Path, **how: bool) -> RunDir:
    """A run that has written down what it is."""
    run = RunDir(path, **how)
    run.write_text("config.toml", "steps = 3\n")
    run.write_json("lock.json", {"seed": 1})
    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def trajectory(**fields: Any) -> Trajectory:
    return Trajectory(SampleId("sums", 3, 1), "math/arithmetic", Task("t7"), 0, **fields)


def test_only_a_run_that_did_not_begin_is_forgotten(tmp_path: Path) -> None:
    with started(tmp_path / "empty") as run:
        run.forget()
    assert not run.path.exists()
    with started(tmp_path / "stepped") as run:
        run.metrics({"step": 0})
        run.forget()
        assert rows(run.path) == [{"step": 0}]
    with started(tmp_path / "played") as run:
        run.trajectory(trajectory())
        run.forget()
        assert run.path.exists()
    with started(tmp_path / "saved") as run:
        run.checkpoints.mkdir()
        run.forget()
        assert run.checkpoints.exists()


def test_rows_and_episodes_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    with started(tmp_path / "a" / "run") as run:
        run.metrics({"step": 0, "loss": 0.5})
        run.metrics({"step": 1})
        run.trajectory(trajectory())
        assert rows(run.path) == [{"step": 0, "loss": 0.5}, {"step": 1}]
        assert json.loads((run.path / "trajectories.jsonl").read_text())["id"] == "sums#3.1.0"
    assert run.checkpoints == tmp_path / "a" / "run" / "checkpoints"
    assert run.read_json("lock.json") == {"seed": 1}


def test_what_was_written_is_never_written_again(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        for write in (lambda: run.metrics({"step": 0}), lambda: run.trajectory(trajectory())):
            write()
        for name in ("metrics.jsonl", "trajectories.jsonl"):
            with (tmp_path / name).open("r+") as file:
                file.write("#")  # in the place of the first brace
        run.metrics({"step": 1})
        run.trajectory(trajectory())
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        first, second = (tmp_path / name).read_text().splitlines()
        assert first.startswith("#") and second.startswith("{")


def test_a_run_is_gone_on_with_or_replaced_only_when_asked(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        first.metrics({"step": 0})
    with pytest.raises(UsageError, match="--resume, or replace it with --overwrite"):
        RunDir(tmp_path)
    with RunDir(tmp_path, resume=True) as again:
        again.metrics({"step": 1})
    assert [row["step"] for row in rows(tmp_path)] == [0, 1]
    with RunDir(tmp_path, overwrite=True):
        assert rows(tmp_path) == [] and not (tmp_path / "config.toml").exists()


def test_a_run_that_was_to_be_replaced_by_one_that_could_not_begin_is_there_again(tmp_path: Path) -> None:
    with started(tmp_path / "run") as first:
        first.metrics({"step": 7})
    before = {path.name: path.read_bytes() for path in first.path.iterdir()}
    with started(first.path, overwrite=True) as second:
        second.forget()
    assert {path.name: path.read_bytes() for path in first.path.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("told", [True, False])
def test_what_is_replaced_goes_with_the_first_step_or_the_end(tmp_path: Path, told: bool) -> None:
    started(tmp_path / "run").close()
    with started(tmp_path / "run", overwrite=True) as run:
        assert (tmp_path / "run.replaced").is_dir()
        if told:
            run.metrics({"step": 0})
            assert not (tmp_path / "run.replaced").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("told", [True, False])
def test_what_is_replaced_stays_beside_a_run_that_broke_before_its_first_step(tmp_path: Path, told: bool) -> None:
    with started(tmp_path / "run") as first:
        first.metrics({"step": 7})
    with pytest.raises(MemoryError), started(tmp_path / "run", overwrite=True) as run:
        if told:
            run.metrics({"step": 0})
        raise MemoryError
    assert (tmp_path / "run.replaced").exists() == (not told)
    if not told:
        assert [row["step"] for row in rows(tmp_path / "run.replaced")] == [7]


def test_what_a_killed_run_has_set_aside_goes_and_what_is_not_a_run_does_not(tmp_path: Path) -> None:
    started(tmp_path / "run").close()
    started(tmp_path / "run.replaced").close()
    with started(tmp_path / "run", overwrite=True):
        pass
    (tmp_path / "run.replaced").mkdir()
    (tmp_path / "run.replaced" / "precious.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"can't be moved to .*run\.replaced"):
        RunDir(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run.replaced" / "precious.txt").read_text() == "mine" and (
        tmp_path / "run" / "lock.json"
    ).exists()


@pytest.mark.parametrize("how", [{}, {"overwrite": True}])
@pytest.mark.parametrize("name", ["precious.txt", "config.toml"])
def test_what_is_not_a_run_is_never_touched(tmp_path: Path, name: str, how: dict[str, bool]) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="is not empty and is not a run"):
        RunDir(tmp_path, **how)
    with pytest.raises(UsageError, match="is not empty and is not a run"):
        RunDir(tmp_path / name, **how)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_an_empty_directory_will_do_and_has_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing to resume in .* Start without --resume"):
        RunDir(tmp_path, resume=True)
    with started(tmp_path, overwrite=True) as run:
        assert run.path == tmp_path


def test_a_resumed_run_forgets_the_rows_it_takes_again(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        for step in range(4):
            run.metrics({"step": step, "try": 1})
    with RunDir(tmp_path, resume=True) as run:
        run.cut_metrics(2)
        run.metrics({"step": 2, "try": 2})
    assert [(row["step"], row["try"]) for row in rows(tmp_path)] == [(0, 1), (1, 1), (2, 2)]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "trajectories.jsonl"])
@pytest.mark.parametrize("whole", ["", '{"step": 0}\n', '{"step": 0}\n{"step": 1}\n'])
@pytest.mark.parametrize("cut", ["", "{", '{"step": 2, "lo', '{"step": 2}'])
def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path, name: str, whole: str, cut: str) -> None:
    started(tmp_path).close()
    (tmp_path / name).write_text(whole + cut)
    with RunDir(tmp_path, resume=True) as run:
        run.cut_metrics(9)
        run.metrics({"step": 2})
        run.trajectory(trajectory())
    lines = (tmp_path / name).read_text().splitlines()
    assert lines[:-1] == whole.splitlines()
    assert json.loads(lines[-1])


def test_an_episode_is_readable() -> None:
    call = ToolCall("add", {"a": 1}, "c1")
    bad = ToolCall("", "{oops", "c2", error="not JSON")
    span = TokenSpan(np.arange(3, dtype=np.int32), True, np.zeros(3, np.float32), np.asarray([4, 5, 5], np.int32))
    row = readable(
        trajectory(
            spans=(TokenSpan.forced([1, 2]), span),
            messages=(Message.of("user", "1 + 1?"), Message.of("assistant", "hm", tool_calls=(call, bad))),
            turns=1,
            status="truncated",
            stop_reason="max_tokens",
            score=Score(0.5, {"env": 1.0, "rewards/concise": None}),
            timing={"env": 0.123456},
        )
    )
    assert json.loads(json.dumps(row)) == {
        "id": "sums#3.1.0",
        "env": "math/arithmetic",
        "task": "t7",
        "messages": [
            {"role": "user", "text": "1 + 1?"},
            {
                "role": "assistant",
                "text": "hm",
                "tool_calls": [
                    {"name": "add", "arguments": {"a": 1}},
                    {"name": "", "arguments": "{oops", "error": "not JSON"},
                ],
            },
        ],
        "score": 0.5,
        "parts": {"env": 1.0, "rewards/concise": None},
        "status": "truncated",
        "stop_reason": "max_tokens",
        "failure": None,
        "turns": 1,
        "tokens": 5,
        "sampled_tokens": 3,
        "oldest_version": 4,
        "timing": {"env": 0.1235},
    }


def test_a_failed_episode_says_where_it_failed() -> None:
    failure = Failure("env_raised", "env.step", "RuntimeError: broke", retry=True)
    row = readable(trajectory(status="failed", stop_reason="env_raised", failure=failure, score=Score(None)))
    assert row["failure"] == {"kind": "env_raised", "boundary": "env.step", "message": "RuntimeError: broke"}
    assert (row["score"], row["parts"], row["messages"], row["oldest_version"]) == (None, {}, [], None)


@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}])
def test_one_directory_is_written_by_one_process(tmp_path: Path, how: dict[str, bool]) -> None:
    with started(tmp_path / "run") as run:
        with pytest.raises(UsageError, match="another process"):
            RunDir(run.path, **how)
        assert (run.path / "config.toml").exists()
    RunDir(tmp_path / "run", **how).close()


def test_a_directory_that_cannot_be_made_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="can't be made"):
        RunDir(tmp_path / "file" / "run")


def test_damaged_rows_of_metrics_go_and_the_run_goes_on(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0}\ngarbage{\n\xff\n3\n{"step": 1}\n')
        run.cut_metrics(5)
        assert rows(tmp_path) == [{"step": 0}, {"step": 1}]


def test_a_damaged_lock_is_named(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        (tmp_path / "lock.json").write_text("{")
        with pytest.raises(CheckpointError, match=r"lock\.json can't be read"):
            run.read_json("lock.json")
