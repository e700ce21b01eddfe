"""``run`` in a notebook shows one table, which refreshes while the cell runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from optuna_deadline.live.notebook import html_of, in_notebook

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
CELL = """
import time
import optuna
import optuna_deadline
optuna.logging.set_verbosity(optuna.logging.WARNING)

def objective(trial):
    rate, state = trial.suggest_float("rate", 0.01, 0.2), {"loss": 1.0}
    training = optuna_deadline.resumable(trial, steps=20, state=state)
    for step in training:
        time.sleep(0.05)
        state["loss"] *= 1 - rate
        step.report(state["loss"])
    return training.result()

study = optuna.create_study(storage="sqlite:///s.db", study_name="shown")
result = optuna_deadline.run(study, objective, "6s", cpus=2)
"""


def test_a_process_without_a_kernel_is_no_notebook() -> None:
    assert not in_notebook()


def test_colours_stay_and_text_cannot_act() -> None:
    html = html_of(Text("<script>best 0.5", style="green"))
    assert html.startswith("<pre") and "&lt;script&gt;" in html and "color: #" in html


@pytest.mark.slow
def test_a_cell_has_one_table_with_the_studys_last_state(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )  # fmt: skip
    seen: list[Any] = []
    kept = client.process_message

    def watch(message: Any, *rest: Any) -> Any:
        if message["msg_type"] in ("display_data", "update_display_data"):
            seen.append(message["msg_type"])
        return kept(message, *rest)

    client.process_message = watch
    client.execute()
    [table] = [one for one in notebook.cells[0].outputs if one.output_type == "display_data"]
    html = table.data["text/html"]
    assert "shown" in html and "best" in html and "slots" in html
    assert "the study has ended" in html, html
    assert seen.count("display_data") == 1 and seen.count("update_display_data") > 5
    texts = [one.text for one in notebook.cells[0].outputs if one.output_type == "stream"]
    assert "starts on 1 slot" not in json.dumps(texts), "the table takes the lines' place"
