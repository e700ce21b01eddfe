"""What the library says in a rank is seen, at level INFO too; other loggers are as they were."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging
from optuna_deadline.rank.process import show_info_messages
{before}
show_info_messages()
logging.getLogger("optuna_deadline").info("told by us")
logging.getLogger("optuna_deadline.a.part").info("told by a part")
logging.getLogger("another").info("told by another")
logging.getLogger("another").warning("warned by another")
"""


def printed(before: str = "") -> list[str]:
    program = PROGRAM.format(before=before)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return ran.stderr.splitlines()


def test_where_no_logging_is_configured_information_of_ours_is_seen() -> None:
    assert printed() == ["told by us", "told by a part", "warned by another"]


def test_a_configuration_of_the_objective_is_obeyed_and_nothing_is_said_twice() -> None:
    assert printed("logging.basicConfig(format='%(message)s')") == printed()
    quiet = "logging.getLogger('optuna_deadline').setLevel(logging.ERROR)"
    assert printed(quiet) == ["warned by another"]
