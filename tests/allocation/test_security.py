"""What each role may do, and that no password gets out."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from sql_world import World
from typer.testing import CliRunner

from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.engine import create
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.database.schema import PREFIX
from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.cli import app
from optuna_deadline.cli.databases import STORAGE_VARIABLE, make_storage, open_storage
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.study.terms import Given
from optuna_deadline.worker.database_errors import describe_database_error

pytestmark = pytest.mark.nightly_but(r"each_command|planner\[planner")
ESSAY = Path(__file__).parents[2] / "docs" / "design" / "allocation.md"
ROLES = ("viewer", "worker", "planner")
SECRET = "tr0ub4dor"
As = Callable[[str], Database]


@pytest.fixture
def storage_url(postgres_url: str) -> str:
    """Roles are PostgreSQL's."""
    return postgres_url


@pytest.fixture
def as_role(world: World, postgres: PostgresServer) -> Iterator[As]:
    """Databases to which one logs in as the essay's roles, with the essay's rights."""
    grants, _ = re.findall(r"```sql\n(.*?)```", ESSAY.read_text(), re.DOTALL)
    database = world.engine.url.database
    names = {role: f"{role}_{database}" for role in ROLES}
    for role, name in names.items():
        grants = re.sub(rf"\b{role}\b(?=[; ])(?<!_{role})", name, grants)
    with world.engine.begin() as connection:
        for name in names.values():
            connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(grants)
    made: list[Database] = []

    def make(role: str) -> Database:
        made.append(Database(create(world.engine.url.set(username=names[role]))))
        return made[-1]

    yield make
    for database in made:
        database.engine.dispose()
    with world.engine.begin() as connection:
        for name in reversed(names.values()):
            connection.exec_driver_sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def _table(world: World, database: Database) -> AllocationTable:
    return AllocationTable(
        database, "pool", world.study_id, ttl=30, grace=15, now=lambda: world.time
    )


def refused() -> pytest.RaisesExc[sa.exc.ProgrammingError]:
    return pytest.raises(sa.exc.ProgrammingError, match="permission denied")


@pytest.mark.postgres
def test_a_viewer_reads_everything_and_writes_nothing(world: World, as_role: As) -> None:
    world.join("a")
    grant = world.grant("a")
    viewer = _table(world, as_role("viewer"))
    assert viewer.trials() and viewer.slots() and viewer.orders("a").trials
    assert viewer.events() and viewer.workers() and viewer.segments()
    for write in (
        lambda: viewer.renew("a", grant.slots),
        lambda: viewer.release("a", grant, "paused", ended="pause"),
        lambda: viewer.add_reports("a", grant, [NewReport(1, 0.5, 1.0)]),
    ):
        with refused():
            write()
    world.time += 31  # no planner rules any more
    with refused():
        viewer.elect_planner("a")


@pytest.mark.postgres
def test_a_worker_trains_but_moves_no_deadline_and_rewrites_nothing(
    world: World, as_role: As
) -> None:
    slots = world.join("a")
    number = world.plan("a")
    database = as_role("worker")
    worker = _table(world, database)
    grant = worker.acquire("a", number, slots[:1])
    assert grant is not None
    worker.renew("a", grant.slots)
    worker.add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
    assert worker.release("a", grant, "paused", ended="pause")
    worker.reap()
    assert worker.register("b", "host", 1, [], 1) and worker.register("b", "host", 1, [], 1)
    assert worker.hold(number, True) and worker.pin(number, 2) and worker.drain("host", True) == 2
    for statement in (
        f"UPDATE {PREFIX}study SET deadline = 0",
        f"UPDATE {PREFIX}report SET value = 1",
        f"DELETE FROM {PREFIX}event",
        f"DELETE FROM {PREFIX}trial",
        f"DROP TABLE {PREFIX}event",
    ):
        denied = pytest.raises(sa.exc.ProgrammingError, match=r"permission denied|must be owner")
        with denied, database.engine.begin() as connection:
            connection.exec_driver_sql(statement)


@pytest.mark.postgres
def test_a_worker_trains_on_slots_that_are_paid_for_and_is_the_last_to_leave(
    world: World, as_role: As
) -> None:
    slots = world.join("a")
    number = world.plan("a")
    term = world.table().elect_planner("planner")
    assert term is not None
    world.table().resize_pool("planner", term, 1, world.time + 100)
    worker = _table(world, as_role("worker"))
    grant = worker.acquire("a", number, slots[:1])
    assert grant is not None and worker.release("a", grant, "paused", ended="pause")
    worker.leave("a")
    assert worker.orders("").pool_slots == 0


@pytest.mark.postgres
def test_a_worker_cannot_move_anothers_slots_by_our_statements(world: World) -> None:
    world.join("a", cpus=1)
    grant = world.grant("a")
    table = world.table()
    assert table.renew("b", grant.slots).kept == frozenset()
    assert not table.release("b", grant, "paused", ended="pause")
    assert table.reap() == 0 and table.slots()[0].holder == "a"
    world.time += 46
    assert table.reap() == 1


@pytest.mark.postgres
def test_a_planner_settles(world: World, as_role: As) -> None:
    world.join("a")
    planner = _table(world, as_role("planner"))
    term = planner.elect_planner("p")
    assert term is not None
    planner.set_gate("p", term, False)
    planner.settle("p", term)
    assert planner.orders("a").settled


def test_no_password_gets_out(
    world: World, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = world.engine.url.set(password=SECRET)
    database = connect(url)
    try:
        world.database = database
        world.join("a")
        world.grant("a")
        output = [repr(event) for event in world.table().events()]
        output += [repr(database.engine), str(database.url)]
    finally:
        disconnect(database)
    for bad in (url.set(port=1), url.set(database="nowhere")):
        with pytest.raises(sa.exc.OperationalError) as away:
            connect(bad)
        output += [str(away.value), describe_database_error(away.value)]
    for text in (f"postgres//me:{SECRET}@host/db", f"postgresql:me:{SECRET}@host"):
        with pytest.raises(DeadlineError) as refusal:
            open_storage(text)
        output.append(str(refusal.value))
    assert not [line for line in [*output, caplog.text] if SECRET in line]


@pytest.mark.postgres
def test_with_a_login_each_a_teammate_reads_no_key_and_writes_no_checkpoint(
    world: World, as_role: As
) -> None:
    planner = as_role("planner").url.username
    _, policies = re.findall(r"```sql\n(.*?)```", ESSAY.read_text(), re.DOTALL)
    names = {name: f"{name}_{world.engine.url.database}" for name in ("alice", "bob")}
    policies = policies.replace(
        "planner TO alice, bob", f"{planner} TO {', '.join(names.values())}"
    )
    policies = policies.replace("TO worker;", f"TO {planner};")
    with world.engine.begin() as connection:
        for name in names.values():
            connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(policies)
        connection.exec_driver_sql(
            f"INSERT INTO study_owner VALUES ({world.study_id}, '{names['alice']}')"
        )
    databases = {
        who: Database(create(world.engine.url.set(username=name))) for who, name in names.items()
    }
    try:
        slots = world.join("a")
        number = world.plan("a")
        alice, bob = (_table(world, databases[who]) for who in ("alice", "bob"))
        grant = alice.acquire("a", number, slots[:1])
        assert grant is not None
        alice.renew("a", grant.slots)
        alice.add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
        saved = Checkpoint(number, grant.fence, 1, 0.5, Path("/a.ckpt"), 1, "0" * 64)
        alice.add_checkpoint("a", grant, saved)
        with world.engine.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO {PREFIX}meeting (study_id, number, fence, address, port, link, key)"
                f" VALUES ({world.study_id}, {number}, 1, 'host', 1, 1, 'secret')"
            )
        keys = {}
        for who, database in databases.items():
            with database.engine.connect() as connection:
                found = connection.exec_driver_sql(f"SELECT key FROM {PREFIX}meeting").all()
            keys[who] = [key for (key,) in found]
        assert keys == {"alice": ["secret"], "bob": []}
        assert len(bob.reports()) == len(bob.checkpoints()) == 1  # to see them is allowed
        for write in (
            lambda: bob.add_reports("a", grant, [NewReport(2, 0.5, 1.0)]),
            lambda: bob.add_checkpoint("a", grant, saved._replace(step=2)),
        ):
            with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
                write()
    finally:
        for database in databases.values():
            database.engine.dispose()
        with world.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE study_owner CASCADE")
            for name in names.values():
                connection.exec_driver_sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


#: What each role can do, and what it is refused; a role can also do what those before it can.
COMMANDS = {
    "viewer": (
        "status s", "status s --events", "status s --forecast", "load-best s", "status --pool",
        "doctor",
    ),
    "worker": (
        "steer 0 --pause --study s", "steer 0 --resize 1 --study s", "drain node7",
    ),
    "planner": ("set s --deadline 2h", "stop s --within 60s"),
    "owner": ("create new --deadline 1h",),
}  # fmt: skip
LEVELS = (*ROLES, "owner")


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("role", LEVELS)
def test_each_command_needs_the_role_of_the_table(role: str, world: World, as_role: As) -> None:
    owner = world.engine.url
    study = optuna.create_study(study_name="s", storage=owner.render_as_string(False))
    terms = agree(study, "1h")
    table = AllocationTable(world.database, "lab", terms.study_id)
    table.register("me", "node7", 1, ["gpu:0"], 0)
    term = table.elect_planner("me")
    assert term is not None
    table.open_trial("me", term, 0, study.ask()._trial_id)
    table.write_plan("me", term, [Assignment(0, "run", "me", 1, "")])
    grant = table.acquire("me", 0, [table.slots()[-1].id])
    assert grant is not None
    table.add_reports("me", grant, [NewReport(1, 0.5, 1.0)])
    url = owner if role == "owner" else as_role(role).url
    for level, commands in COMMANDS.items():
        may = LEVELS.index(level) <= LEVELS.index(role)
        for command in commands:
            asked = CliRunner().invoke(
                app, [*command.split(), "--storage", url.render_as_string(False)]
            )
            output = (role, command, asked.output, asked.exception)
            assert (asked.exit_code == 0) == may, output
            if not may:
                assert isinstance(asked.exception, SystemExit), output
                assert "optuna-deadline: The database refuses" in asked.output, output


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("role", ["planner", "worker"])
def test_a_worker_process_needs_the_role_of_a_planner(
    role: str, world: World, as_role: As, tmp_path: Path
) -> None:
    study = optuna.create_study(study_name="s", storage=world.engine.url.render_as_string(False))
    agree(study, "100s", Given("fifo", {"n_trials": 3}))
    (tmp_path / "train.py").write_text(
        "def objective(trial):\n"
        "    x = trial.suggest_float('x', 0, 1)\n"
        "    trial.set_user_attr('a', 1)\n"
        "    for step in range(3):\n"
        "        trial.report(x, step)\n"
        "    return x\n"
    )
    program = "from optuna_deadline.cli import app; app()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "worker", "train.py:objective", "--study", "s", "--cpus",
         "1", "--dashboard", "--oversubscribe"],
        env={**os.environ, STORAGE_VARIABLE: as_role(role).url.render_as_string(False)},
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        assert worker.stderr is not None
        output = ""
        for line in worker.stderr:
            output += line
            if "cannot plan" in line:
                worker.terminate()
    denied = "permission denied" in output or "refuses" in output
    assert denied == (role == "worker"), output
    if role == "planner":
        assert worker.returncode == 0, output
        assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE"] * 3


def test_a_new_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_storage(f"sqlite:///{tmp_path}/s.db")
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.glob("s.db*")} == {"0o600"}
