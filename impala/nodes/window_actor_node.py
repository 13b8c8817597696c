"""What runs inside the process of an actor that fills a replay table."""

from impala import agents
from impala.nodes.actor_node import ActorNode
from impala.nodes.parts import lane_origin, make_environment, make_policy, training_limits


class WindowActorNode(ActorNode):
    """An `ActorNode` that writes overlapping windows with their first priorities, not chunks, each lane into one table.

    Every environment of all actors explores with a constant of its own. Weights are fetched every
    `actor.weight_frames` frames.
    """

    def _make_lanes(self, clients) -> list:
        from impala.acting import actors, policies, windows
        from impala.replay import tables
        from impala.replay.windows import lengths

        config, spec, agent = self._config, self._spec, agents.of(self._config)
        actor, n = config.actor, config.actor.num_lane_environments
        outputs = policies.network_outputs(self._network)
        length = max(1, actor.weight_frames // spec.frames_per_step)
        lanes, sinks = [], []
        for lane in range(actor.num_lanes):
            origin, seed = lane_origin(config, self._incarnation, self._index, lane), self._seed(lane)
            first = self._index * actor.num_environments + origin.environment
            client = clients[(self._index * actor.num_lanes + lane) % len(clients)]
            sinks.append(windows.TableWindows(
                client, tables.REPLAY, n, lengths=lengths(agent.make_chunk_spec(config, spec)),
                should_stop=self._stop.is_set, max_pending=actor.num_steps_pending,
                num_together=actor.num_steps_together,
            ))  # fmt: skip
            behaviour = agents.behaviour_of_lane(config, spec, first, n)
            self._environments.append(make_environment(
                config, n, num_threads=actor.num_lane_threads, first_seed=seed, **training_limits(config)
            ))  # fmt: skip
            lanes.append(actors.Actor(
                self._environments[-1],
                make_policy(outputs, spec, n, seed=seed, behaviour=behaviour),
                windows.WindowWriter(
                    spec, n, length=config.agent.n_step, origin=origin, sink=sinks[-1],
                    prioritise=agent.make_prioritise(config, self._network), kept=behaviour.kept,
                ),
                self._fetcher.sync if lane == 0 else lambda: self._fetcher.version,
                unroll_length=length, origin=origin,
            ))  # fmt: skip
        self._sink = _Sinks(sinks)
        return lanes


class _Sinks:
    def __init__(self, sinks: list):
        self._sinks = sinks

    def blocked_fraction(self) -> float:
        """Returns the share of time spent waiting for the table since the last call."""
        return sum(sink.blocked_fraction() for sink in self._sinks)
