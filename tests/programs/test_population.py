"""Population-based training: the rules by hand, and a population in processes that evolves and resumes."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from impala import agents, lockstep
from impala import config as config_lib
from impala.learning import checkpoints, weights
from impala.monitoring import dashboard
from impala.monitoring.logs import read_csv
from impala.nodes import checking, workers
from impala.nodes.learner_node import LearnerNode
from impala.nodes.population import Member, are_others_done, evolving, scaled
from tests.programs import running

A3C = ["train", "--config", "configs/a3c_catch.yaml", "--server.num-shards", "2", "--actor.num-actors", "1"]


def build(**overrides):
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return config_lib.build({"environment": {"name": "catch"}, "network": {"torso": "mlp"}}, {"population.size": 3} | keys)


def row(episodes=5_000, frames=20_000_000):
    return dict(frames=frames, updates=7, wall_seconds=9.0, episodes=episodes)


@pytest.fixture
def folder(tmp_path):
    for index in range(3):
        (tmp_path / f"member_{index}").mkdir()
    return tmp_path


def publish(folder, index, fitness, factors, frames=0):
    """Writes what a member's checkpoint says of it."""
    checkpoint = folder / f"member_{index}" / "checkpoints" / "0000000001"
    checkpoint.mkdir(parents=True, exist_ok=True)
    population = dict(fitness=fitness, factors=factors, num_episodes=0, count=0)
    (checkpoint / "state.json").write_text(json.dumps(dict(updates=1, frames=frames, population=population)))


def test_it_evolves_after_its_childhood_and_then_once_a_period(folder):
    member = Member(build(), 0, folder, {})
    assert not member.is_due(frames=19_999_999, episodes=[10_000])
    assert not member.is_due(frames=20_000_000, episodes=[4_999])
    assert member.is_due(frames=20_000_000, episodes=[5_000])
    member.evolve(row(episodes=5_300), [5_300], 0.5, lambda other: None)
    assert not member.is_due(frames=30_000_000, episodes=[10_299]) and member.is_due(frames=30_000_000, episodes=[10_300])


def test_it_is_judged_by_a_hundred_new_episodes_of_each_task(folder):
    """Else what its fitness is made of would be, in part, from before it copied another."""
    tasks = {"environment.name": ["catch", "memory_chain"], "actor.num_lanes": 2, "target_return": None}
    member = Member(build(population__period_episodes=500, **tasks), 0, folder, {})
    assert not member.is_due(frames=10**9, episodes=[900, 99]) and member.is_due(frames=10**9, episodes=[900, 100])
    member.evolve(row(episodes=1_000), [900, 100], 0.5, lambda other: None)
    state = json.loads(json.dumps(member.state(0.5))) | {"updates": 7}
    for each in (member, Member(build(**tasks), 0, folder, state)):
        assert not each.is_due(frames=10**9, episodes=[9_000, 199])
    assert not member.is_due(frames=10**9, episodes=[1_199, 200]) and member.is_due(frames=10**9, episodes=[1_300, 200])


@pytest.mark.parametrize(
    "mine, theirs, is_copied", [(0.5, 0.5501, True), (0.5, 0.5499, False), (None, 0.1, True), (0.1, None, False)]
)
def test_it_copies_who_is_fitter_by_more_than_the_threshold(folder, mine, theirs, is_copied):
    for other in (1, 2):
        publish(folder, other, theirs, dict(learning_rate=3.0, entropy_cost=5.0, epsilon=7.0))
    member, copied = Member(build(population__probability=0.0), 0, folder, {}), []

    def copy(other):
        copied.append(other)
        return checkpoints.read_state(other)

    member.evolve(row(), [5_000], mine, copy)
    assert bool(copied) == is_copied
    assert member.factors == (dict(learning_rate=3.0, entropy_cost=5.0, epsilon=7.0) if is_copied else dict(learning_rate=1.0, entropy_cost=1.0, epsilon=1.0))
    assert set(copied) <= {folder / "member_1" / "checkpoints", folder / "member_2" / "checkpoints"}
    (written,) = read_csv(folder / "member_0" / "population.csv")
    assert int(written["is_copied"]) == is_copied and written["other"] in "12"


def test_whoever_cannot_be_copied_is_left(folder, caplog):
    publish(folder, 1, 9.0, dict(learning_rate=3.0, entropy_cost=5.0, epsilon=7.0))
    publish(folder, 2, 9.0, dict(learning_rate=3.0, entropy_cost=5.0, epsilon=7.0))

    def copy(other):
        raise OSError("gone")

    member = Member(build(population__probability=0.0), 0, folder, {})
    member.evolve(row(), [5_000], 0.5, copy)
    assert member.factors["learning_rate"] == 1.0 and "cannot be copied: gone" in caplog.text
    assert read_csv(folder / "member_0" / "population.csv")[0]["is_copied"] == "0"


def test_each_parameter_moves_by_the_factor_with_the_probability(folder):
    """Of 3,000 draws a third moves, half of them up: five standard deviations."""
    moves = []
    for seed in range(1_000):
        member = Member(build(seed=seed), 0, folder, {})
        member._log.write = lambda row: None
        member.evolve(row(), [5_000], 0.5, lambda other: None)
        moves += [round(math.log(factor, 1.2)) for factor in member.factors.values()]
        assert all(math.isclose(factor, 1.2 ** round(math.log(factor, 1.2))) for factor in member.factors.values())
    moves = np.array(moves)
    assert abs(np.mean(moves != 0) - 1 / 3) < 5 * (1 / 3 * 2 / 3 / 3000) ** 0.5
    assert set(moves) == {-1, 0, 1} and abs(np.mean(moves[moves != 0])) < 5 / 1000**0.5


def test_members_begin_log_uniformly_within_the_spread(folder):
    """Of 900 draws on [-1, 1]: mean 0 and variance 1/3, to five standard deviations."""
    build_member = lambda seed, index: Member(build(seed=seed, population__spread=10.0), index, folder, {})  # noqa: E731
    drawn = np.log10([list(build_member(seed, index).factors.values()) for seed in range(100) for index in range(3)])
    assert drawn.shape == (300, 3) and np.all(np.abs(drawn) <= 1) and len(set(drawn.ravel())) == 900
    assert abs(drawn.mean()) < 5 * (1 / 3 / 900) ** 0.5 and abs((drawn**2).mean() - 1 / 3) < 5 * (4 / 45 / 900) ** 0.5
    state = dict(updates=7, population=dict(factors=dict(learning_rate=3.0, entropy_cost=5.0, epsilon=7.0)))
    resumed = Member(build(population__spread=10.0), 0, folder, state)
    assert resumed.factors == state["population"]["factors"], "a resumed member goes on with what it had"
    assert set(Member(build(), 0, folder, {}).factors.values()) == {1.0}


def test_others_are_chosen_alike_and_never_oneself(folder):
    for other in (1, 2):
        publish(folder, other, None, {})
    chosen = []
    member = Member(build(), 0, folder, {})
    member._log.write = lambda row: chosen.append(row["other"])
    for _ in range(400):
        member.evolve(row(), [5_000], 0.5, lambda other: None)
    assert set(chosen) == {1, 2} and abs(np.mean(np.array(chosen) == 1) - 0.5) < 5 * 0.5 / 400**0.5


def test_factors_scale_what_the_schedules_say_and_survive_a_resume(folder):
    member = Member(build(population__probability=1.0), 0, folder, {})
    member.evolve(row(), [5_000], 0.5, lambda other: None)
    state = json.loads(json.dumps(member.state(0.5)))
    resumed = Member(build(), 0, folder, state | {"updates": 7})
    assert resumed.factors == member.factors and not resumed.is_due(frames=10**9, episodes=[9_999])
    scheduled = dict(learning_rate=1e-3, entropy_cost=0.01, epsilon=0.1)
    assert scaled(scheduled, resumed.factors) == {name: value * member.factors[name] for name, value in scheduled.items()}
    fixed = Member(build(population__parameters=["entropy_cost"]), 0, folder, {})
    assert list(fixed.factors) == ["entropy_cost"] and scaled(scheduled, {"entropy_cost": 2.0}) == scheduled | {"entropy_cost": 0.02}


def test_a_copy_has_weights_slots_and_factors_of_the_other_bit_for_bit(tmp_path):
    def trained(seed, num_updates):
        run = lockstep.Lockstep(build(population__size=1, learner__batch_size=4, seed=seed))
        for _, _ in zip(range(num_updates), run.updates()):
            pass
        return run

    fit, other = trained(1, 5), trained(2, 3)
    factors = dict(learning_rate=1.2, entropy_cost=1 / 1.2, epsilon=1.0)
    saved = checkpoints.Checkpoints(tmp_path, network=fit.network, optimizer=fit.learner.optimizer)
    saved.save(5, dict(frames=9, population=dict(fitness=1.0, factors=factors)))
    publisher = weights.Publisher(other.learner.weights)
    before = publisher.get(-1)[0]
    node = SimpleNamespace(learner=other.learner, _publisher=publisher)
    state = LearnerNode._copy(node, tmp_path)
    assert state["population"]["factors"] == factors
    of_both = [
        [*run.network.variables, *run.learner.optimizer.variables()] for run in (fit, other)
    ]  # fmt: skip
    assert any(np.any(variable.numpy()) for variable in fit.learner.optimizer.variables()[1:]), "slots that say something"
    for one, two in zip(*of_both, strict=True):
        np.testing.assert_array_equal(one, two)
    other.learner.num_updates += 1  # as the next update does
    with publisher.updating():
        pass
    version, arrays = publisher.get(before)
    assert version == before + 1
    for variable, array in zip(fit.network.trainable_variables, arrays, strict=True):
        np.testing.assert_array_equal(variable, array)


@pytest.mark.parametrize("name", [pytest.param("a3c_catch", marks=pytest.mark.soak), "dppo_pendulum", "gorila_catch"])
def test_a_parameter_server_takes_over_all_shards_of_another(name, folder, two_shards):
    made = config_lib.load(f"configs/{name}.yaml", {"population.size": 2, "server.num_shards": 2})
    (fit, fits_other), (server, shard) = (two_shards(made.member(index), folder / f"member_{index}", index) for index in range(2))
    random = np.random.default_rng(0)
    noise = lambda arrays: [array + random.normal(size=array.shape).astype(np.float32) for array in arrays]  # noqa: E731
    for one in (fit, fits_other):
        state = one.server.copy()
        one.server.replace(state._replace(
            iterations=[7], parameters=noise(state.parameters), slots=[noise(slots) for slots in state.slots], target=noise(state.target),
            statistics=np.arange(state.statistics.size, dtype=float),
        ))  # fmt: skip
    fit.head.factors["learning_rate"] = 1.44
    fit.head.monitor.add_steps(7)
    assert fit.head.save() is None
    with pytest.raises(RuntimeError, match="holds no checkpoint"):
        server._copy(fit._run.folder / "nowhere")
    assert server.server.version == shard.server.version == 0
    state = server._copy(fit._run.folder / "checkpoints")
    assert state["population"]["factors"]["learning_rate"] == 1.44 and "frames" in state
    with fit._hold(), server._hold():
        for one, other in zip(of(fit), of(server), strict=True):
            np.testing.assert_array_equal(one, other)
    assert server.server.version == shard.server.version == 1 and server.server.frames == 0
    assert server._optimizers[0].iterations.numpy() == 7, "the slots are so old"
    shard.replace(1, *server._part(1))
    assert shard.server.version == 1, "the same call once more, its answer lost"

    server._log()
    row = server.status() | {"fitness": 1.0}
    screen = dashboard.Dashboard("run", total_frames=1000)
    for shown in (row, row | {"members": [row, row]}):
        screen._draw(shown, ["a notice"])
        assert screen.line(shown)

    server.head.factors["learning_rate"] = 1.2
    server._vary_all()
    base = agents.of(made).make_schedules(made)(0)["learning_rate"]
    assert server._scheduled(0)["learning_rate"] == shard._scheduled(0)["learning_rate"] == 1.2 * base
    assert server._settings()[1:].tolist() == [1.0] + [1.2 if key == "learning_rate" else 1.0 for key in evolving(made)]


def of(server):
    """Returns all that a checkpoint of a server holds."""
    variables = [*server.network.variables, *server._optimizers[0].variables(), server._saved_statistics]
    return [variable.numpy() for variable in variables]


def test_workers_take_the_factors_of_what_the_loss_needs():
    made = config_lib.load("configs/a3c_catch.yaml", {"population.size": 2, "population.parameters": ["entropy_cost", "epsilon"]})
    worker = workers.make(made, checking.check(made), 0)
    before = worker._scheduled()
    worker.heed(np.array([0.0, 0.0, 3.0, 5.0]))
    assert worker._scheduled() == {"entropy_cost": 3.0 * before["entropy_cost"]}
    worker.close()


def test_a_worker_forgets_its_iteration_once_the_parameters_are_another_members():
    """Its transitions and its share of the KL are of another policy."""
    made = config_lib.load("configs/dppo_catch.yaml", {"population.size": 2, "loss.correction": "penalty"})
    worker = workers.make(made, checking.check(made), 0)
    factors = [1.0] * len(evolving(made))
    statistics = np.array([1.0, 0.0])
    worker.assign(1, 0, [variable.numpy() for variable in worker.variables], statistics)
    while (batch := worker.batch()) is None:
        worker.act()
    worker.differentiate(batch)
    worker.heed(np.array([0.0, 0.0, *factors]))
    assert worker.batch() is not None, "the same iteration's second batch"
    worker._batches._increments[:] = 3.0
    worker.heed(np.array([0.0, 1.0, *factors]))
    assert worker.batch() is None and not worker.increments().any()
    worker.heed(np.array([0.0, 1.0, *factors]))
    while worker.batch() is None:
        worker.act()
    worker.heed(np.array([0.0, 1.0, *factors]))
    assert worker.batch() is not None
    worker.close()


def test_only_what_an_agent_has_evolves():
    made = config_lib.load("configs/gorila_catch.yaml", {"population.size": 2})
    assert evolving(made) == ("learning_rate", "epsilon")
    assert evolving(build()) == ("learning_rate", "entropy_cost", "epsilon")


def test_it_waits_for_the_others_last_frames(folder):
    config = build(total_frames=1_000)
    publish(folder, 1, None, {}, frames=1_000)
    assert not are_others_done(config, 0, folder)
    publish(folder, 2, None, {}, frames=999)
    assert not are_others_done(config, 0, folder)
    publish(folder, 2, None, {}, frames=1_004)
    assert are_others_done(config, 0, folder) and not are_others_done(config, 1, folder)


@pytest.mark.soak
@pytest.mark.parametrize("start, name, scheduled", [
    pytest.param(running.CATCH, "entropy_cost", 0.01, id="impala"), pytest.param(A3C, "entropy_cost", 0.01, id="a3c"),
    pytest.param([*A3C[:2], "configs/dppo_catch.yaml", *A3C[3:]], "entropy_cost", 0.01, id="dppo"),
    pytest.param([*A3C[:2], "configs/gorila_catch.yaml", *A3C[3:]], "learning_rate", 0.02, id="gorila"),
])  # fmt: skip
def test_a_population_evolves_and_resumes(start, name, scheduled, tmp_path):
    folder = tmp_path / "run"
    command = [
        *start, "--run", folder, "--population.size", 2, "--population.burn-in-frames", 5_000,
        "--population.period-episodes", 200, "--population.threshold", 0.02, "--checkpoint-period-seconds", 1,
        "--population.probability", 1.0,
        "--target-return", 2,
    ]  # fmt: skip
    process = running.start(*command, "--total-frames", 2_000_000_000)
    running.wait_for(
        lambda: all(len(read_csv(folder / f"member_{index}" / "population.csv")) >= 3 for index in range(2)),
        running.START_SECONDS, "three evolutions each",
    )  # fmt: skip
    running.press_ctrl_c(process)
    errors = running.end_of(process)
    assert process.returncode == 0, errors
    reached = [int(read_csv(folder / f"member_{index}" / "metrics.csv")[-1]["frames"]) for index in range(2)]
    total = max(reached) + 5_000
    result = running.run(*command, "--total-frames", total)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    seeds = [config_lib.load(folder / f"member_{index}" / "config.yaml").seed for index in range(2)]
    assert seeds == [0, 1_000_003], "neither is one of a population with another small seed"
    for index in range(2):
        evolutions = read_csv(folder / f"member_{index}" / "population.csv")
        assert len(evolutions) >= 3 and all(e["other"] == str(1 - index) for e in evolutions)
        assert all(b >= a + 200 for a, b in zip(*[[int(e["episodes"]) for e in evolutions][i:] for i in (0, 1)]))
        assert len({e["learning_rate"] for e in evolutions} | {e[name] for e in evolutions}) > 1
        rows = read_csv(folder / f"member_{index}" / "metrics.csv")
        assert int(rows[-1]["frames"]) >= total
        late = [row for row in rows if int(row["frames"]) > int(evolutions[-1]["frames"])]
        if late:  # what the optimizer was given is what evolved
            assert float(late[-1][name]) == pytest.approx(scheduled * float(evolutions[-1][name]), rel=1e-4)
    plotted = running.run("plot", folder, "--output", folder / "curves.svg")
    assert plotted.returncode == 0, plotted.stderr
    drawn = (folder / "curves.svg").read_text()
    titles = ("return, mean of 100 episodes", "learning rate", name.replace("_", " "))
    assert all(f"<!-- {title} -->" in drawn for title in titles), "what evolves, too"
    refused = running.run("evaluate", folder)
    assert refused.returncode == 2 and "expected one of its members" in refused.stderr
    changed = running.run(*command, "--total-frames", total, "--population.size", 3)
    assert changed.returncode == 2 and "population.size: was 2, is 3; cannot change on resume" in changed.stderr
