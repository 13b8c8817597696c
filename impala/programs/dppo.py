"""DPPO (Heess et al. 2017, arXiv:1707.02286): PPO (Schulman et al. 2017, arXiv:1707.06347) by many workers.

    worker 0: T steps in each environment, advantages; then M × K times: gradient, θ ─┐
    worker 1: …                                                                       ┼─▶ parameter server, the chief:
    worker n: …                                                                       ┘   mean of the W − D first, θ

An iteration of a worker: it plays an unroll of T steps in each of its environments, computes advantages once from the
values at that time, and trains on the transitions `agent.num_epochs` times, in `agent.num_minibatches` batches each,
then `agent.num_value_epochs` times for the values alone. Each batch's gradient goes to the server, which waits for
those of all workers but `server.num_late`, and applies their mean; what comes later is refused, as its parameters are
old. All iterations end at the same updates, also that of a worker that started again in the middle. One worker is plain
PPO.

Workers also share, exactly, β of the penalty, adapted by the mean KL over all workers' transitions after the policy's
last update of an iteration, and the moments of observations and returns. KL and moments travel with a gradient. Without
value epochs there is none after the policy's last update: then β changes with the first gradient of the next iteration,
and the second is the first that is taken with it.

Differences from Heess et al.: policy and values share a network, unless `agent.separate_networks` is set, and an
optimizer; the hinge is of a minibatch's mean KL; moments are those of the time when an iteration begins, the same for
acting and training; a worker that starts in the middle of one has the newest.
"""

from impala.programs.a3c import ROLES, make_program

__all__ = ["ROLES", "make_program"]  # the same wiring: workers and rules differ by agent
