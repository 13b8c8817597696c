"""Where the nodes of a run stand on a cluster."""

from impala.config import Config
from impala.launching import node_host, ray_cluster, roles

_SERVERS = (roles.SERVER.name, roles.SHARD.name)  # of parameters; they need what a learner needs
_LEARNER, _TABLE, _ALONE = roles.LEARNER.name, roles.TABLE.name, (roles.EVALUATOR.name, roles.SERVER.name)


def placement(config: Config) -> ray_cluster.Placement:
    """Returns where the nodes of a run may stand.

    Learner i and its table share a host: a batch crosses no network. What writes into the run's folder (the first
    learner of the run or of each member, the first shard, the evaluator) stands where the command was given, unless all
    hosts share that folder.
    """
    cluster, num_learners = config.cluster, config.learner.num_learners

    def needs(name: str) -> ray_cluster.Needs:
        kind = name.partition("/")[0]
        role = _LEARNER if kind in _SERVERS else kind
        return ray_cluster.Needs(
            cpus=getattr(cluster, f"{role}_cpus"),
            gpus=cluster.learner_gpus if kind == _LEARNER else 0.0,  # parameter servers use none
            memory_gb=getattr(cluster, f"{role}_memory_gb"),
        )

    def at_launcher(name: str) -> bool:
        role, _, index = name.partition("/")
        is_first = role in _ALONE or role in (_LEARNER, _TABLE) and int(index) % num_learners == 0
        return is_first and not cluster.shared_folder

    def together(name: str) -> str | None:
        role, _, index = name.partition("/")
        return f"{_LEARNER}/{index}" if role in (_LEARNER, _TABLE) else None

    def spreads(name: str) -> bool:
        return cluster.spread_actors or name.startswith(f"{roles.RELAY.name}/")

    return ray_cluster.Placement(
        needs=needs, at_launcher=at_launcher, together=together, spreads=spreads,
        num_awaited=_num_awaited(config), wait_seconds=cluster.wait_seconds,
        ports=(cluster.first_port, cluster.last_port), own_words=config.own_words,
        shares_folder=cluster.shared_folder,
    )  # fmt: skip


def placement_again(config: Config) -> ray_cluster.Placement:
    """Returns the placement of a later launch of a command, which begins once one actor and the evaluators stand.

    Hosts that were lost meanwhile need not be back for the run to go on, those that joined may be unfit, and the
    checkout may have been edited.
    """
    num_awaited = min(1, config.actor.num_actors) + _num_evaluators(config)
    again = dict(num_awaited=num_awaited, ignored=node_host.EDITED, avoids_unfit=True)
    return placement(config)._replace(**again)


def awaited(config: Config) -> dict[str, int]:
    """Returns how many nodes of each role must stand before a run begins."""
    size, server = config.population.size, config.server
    num_learners = size * config.learner.num_learners
    num_actors = size * config.actor.num_actors if config.has_use_for("cluster.actor_cpus") else 0
    heads = dict(server=size, shard=size * (server.num_shards - 1)) if config.has_parameter_server else {}
    has_tables = config.has_replay_table or config.has_use_for("replay.queue_kind")
    num_tables = (size if heads else num_learners) if has_tables else 0
    return {role: count for role, count in dict(
        heads or dict(learner=num_learners), table=num_tables, relay=size * config.actor.num_relays,
        actor=config.cluster.min_actors or num_actors, evaluator=_num_evaluators(config),
    ).items() if count}  # fmt: skip


def _num_awaited(config: Config) -> int | None:
    """Returns how many `returns_alone` nodes must stand first: actors, and an evaluator for each member; None: all."""
    if config.cluster.min_actors is None:
        return None
    return config.cluster.min_actors + _num_evaluators(config)


def _num_evaluators(config: Config) -> int:
    return config.population.size * bool(config.evaluator.num_episodes)
