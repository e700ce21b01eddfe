"""Names and reasons of other users reach no terminal and no log as control characters."""

from __future__ import annotations

import logging
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from optuna_deadline._printable import Lines, printable
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree

EVIL = "x\x1b]0;owned\x07\x1b[2J\u202e\n05:30:00  forged line"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pool in which a teammate has written everything that it can."""
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/study.db"
    mine, theirs = (optuna.create_study(study_name=n, storage=url) for n in ("mine", EVIL))
    for study in (mine, theirs):
        terms = agree(study, "1h")
        table = AllocationTable(open_table(study), "lab", terms.study_id)
        table.register(EVIL + str(terms.study_id), EVIL, 1, [f"gpu:{EVIL}{terms.study_id}"], 0)
        worker = table.workers()[-1].id
        term = table.elect_planner(worker)
        assert term is not None
        trial = study.ask({EVIL: optuna.distributions.CategoricalDistribution([EVIL])})
        table.open_trial(worker, term, 0, trial._trial_id)
        slot = next(s.id for s in table.slots() if s.lent_to == terms.study_id)
        table.write_plan(worker, term, [Assignment(0, "run", worker, 1, EVIL)])
        grant = table.acquire(worker, 0, [slot])
        assert grant is not None
        table.limit_slots(worker, grant, 1, EVIL)
        table.add_reports(worker, grant, [NewReport(1, 0.5, 1.0)])
        table.write_plan(worker, term, [Assignment(0, "pause", None, 0, EVIL)])
    return url


@pytest.mark.parametrize(
    "command",
    [
        "status mine", "status mine --events", "status mine --kind register", "status @evil",
        "status @evil --events", "status @evil --forecast", "best @evil",
        "status --pool", "status @evil --pool",
        "status nowhere", "steer 7 --pause --study @evil", "create mine --deadline 9h",
    ],
)  # fmt: skip
def test_no_command_prints_a_control_character(url: str, command: str) -> None:
    words = [EVIL if word == "@evil" else word for word in command.split()]
    shown = CliRunner().invoke(app, [*words, "--storage", url])
    assert shown.exception is None or isinstance(shown.exception, SystemExit)
    assert not {c for c in shown.output if not c.isprintable()} - {"\n"}, shown.output
    mine = [line for line in shown.output.splitlines() if line.startswith("05:30:00")]
    assert not mine or "@evil" in command  # a name on the command line is the user's own


def test_no_log_line_is_forged(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("optuna_deadline")
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        logger.warning("Trial %d of %s failed: %s", 3, EVIL, ValueError(EVIL))
        logger.warning("Trial: %s", Lines("Traceback:\n  raise\x1b[1m"))
    first, second = caplog.messages
    assert "\n" not in first.partition(" failed: ")[0] and "\x1b" not in first
    assert second == "Trial: Traceback:\n  raise\\x1b[1m"


def test_other_scripts_stay_as_they_are() -> None:
    for text in ("Größe", "学習率", "a b\u00a0c", "🚀"):
        assert printable(text) == text
    assert printable("a\0b\x9b\ud800\u2028") == "a\\x00b\\x9b\\ud800\\u2028"


def test_a_name_of_any_form_is_one_folder(tmp_path: Path) -> None:
    from optuna_deadline.checkpoints.storage import root_of

    for name in ("../../escaped", "/etc", "n" * 300, "a\0b", EVIL, "..", "", "ü" * 300):
        root = root_of(tmp_path, name, "0123456789")
        assert isinstance(root, Path) and root.parent == tmp_path
        root.mkdir()
