"""One learner of a group, run as a process by test_groups: updates on its share of batches drawn alike everywhere.

python -m tests.learning.group_worker INDEX ADDRESS,ADDRESS… MODE OUTPUT
"""

import os
import signal
import sys
import threading
import time

import numpy as np

NUM_UPDATES, B, T = 15, 6, 5


def batch_of(update, share=slice(None)):
    """Random chunks of Catch; the first chunk of every batch has fewer real transitions."""
    from impala.replay import datasets
    from impala.types import ArraySpec, Discrete, EnvironmentSpec, chunk_spec, map_fields

    random = np.random.default_rng(update)
    spec = EnvironmentSpec("catch", ArraySpec((10, 5), np.float32), actions=Discrete(3))

    def draw(field):
        if field.dtype == np.float32:
            return random.normal(size=field.shape).astype(np.float32)
        return random.integers(3, size=field.shape).astype(field.dtype)

    chunks = []
    for index in range(B):
        chunk = map_fields(draw, chunk_spec(spec, T))
        is_first = np.zeros(T + 1, bool)
        is_first[1 : 1 + 3 * (index == 0)] = True
        chunk = chunk._replace(
            is_first=is_first, discount_t=(random.random(T) < 0.9).astype("f4"),
            weights_version=np.int64(10 * update + index),
        )  # fmt: skip
        chunks.append(datasets.marked(chunk, is_replayed=index % 2 == 1))
    return datasets.stack(chunks[share])


def make_learner(reduction, optimizer, group=None, seed=0):
    """Makes a learner; one of summed losses has three tasks with PopArt, whose moments are of all learners' targets."""
    from impala import config as config_lib
    from impala.agents import actor_critic
    from impala.environments import catch

    config = config_lib.build({}, {
        "environment.name": ["catch", "river_swim", "CartPole-v1"] if reduction == "sum" else "catch",
        "actor.num_actors": 3, "network.torso": "mlp",
        "loss.reduction": reduction, "loss.popart": reduction == "sum", "loss.popart_step": 0.1,
        "learner.optimizer": optimizer, "seed": seed, "learner.max_grad_norm": 5.0,
    })  # fmt: skip
    network = actor_critic.make_network(config, catch.Catch(num_environments=1).spec)
    return actor_critic.make_learner(config, network, group=group)


def train(learner, share=slice(None), *, poisoned_share=False):
    """Returns what can be compared; update 7 has a reward that is not a number, in a group in one share only."""
    results = []
    for update in range(NUM_UPDATES):
        batch = batch_of(update, share)
        if update == 7 and poisoned_share:
            batch = batch._replace(r_t=batch.r_t + np.float32("nan"))
        results.append(learner.update(batch, 3e-3))
    names = sorted(results[0].metrics)
    return dict(
        weights=np.concatenate([variable.numpy().ravel() for variable in learner.network.variables]),
        applied=np.array([result.applied for result in results]),
        versions=np.array([result.chunks["weights_version"] for result in results]),
        is_replayed=np.array([result.chunks["is_replayed"] > 0 for result in results]),
        metrics=np.array([[result.metrics[name] for name in names] for result in results]),
    )


def wait_for_peers(index, addresses):
    """Meets as a learner's node does, with less patience."""
    from impala import config as config_lib
    from impala.launching import processes
    from impala.nodes import learner_group

    os.environ[processes.NODE_VARIABLE] = str(os.getppid())
    learner_group._START_SECONDS, stop = 6, threading.Event()
    processes.end_on_sigterm()
    print("WAITING", flush=True)
    learner_group.join(config_lib.build({}, {"environment.name": "catch"}), index, addresses, stop)


def main():
    index, addresses, mode, output = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], sys.argv[4]
    import tensorflow as tf

    from impala import config as config_lib
    from impala.learning import groups
    from impala.nodes import learner_group

    tf.config.threading.set_intra_op_parallelism_threads(1)
    if mode == "wait":
        return wait_for_peers(index, addresses)
    reduction = "mean" if mode == "mean" else "sum"
    config = config_lib.build({}, {"environment.name": "catch", "loss.reduction": reduction})
    group, size = learner_group.make_group(config, index, addresses), B // len(addresses)
    share = slice(index * size, (index + 1) * size)
    if mode in ("sum", "mean"):
        learner = make_learner(mode, "adam" if mode == "sum" else "rmsprop", group)
        results = train(learner, share, poisoned_share=index == len(addresses) - 1)
        group.check_equal(learner.network.variables)
        np.savez(output, **results)
        return
    learner = make_learner("sum", "adam", group, seed=index)  # another network on each
    try:
        group.check_equal(learner.network.variables)
    except groups.LearnersDiffer as error:
        print("DIFFER", error, flush=True)
    variables = [*learner.network.variables, *learner.optimizer.variables()]
    numbers = group.broadcast(variables, [5.0 - index, 2.0**40 + index])
    group.check_equal(learner.network.variables)
    print("NUMBERS", numbers, flush=True)
    agreed = (
        group.agree(is_ready=True, wants_end=False),
        group.agree(is_ready=index == 0, wants_end=index == 1, counts=[index, 10]),
    )
    print("AGREED", *agreed, flush=True)
    for update in range(10_000):
        if index == 1 and update == 5:
            os.kill(os.getpid(), signal.SIGKILL if mode == "die" else signal.SIGSTOP)
        started = time.monotonic()
        try:
            learner.update(batch_of(update, share), 1e-3)
        except groups.PeerLost as error:
            print(f"LOST {time.monotonic() - started:.1f} {error}", flush=True)
            return


if __name__ == "__main__":
    main()
