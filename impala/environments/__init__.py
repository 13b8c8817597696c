"""Choose one: `atari:<game>`, `minatar:<game>`, one of `OWN` by its name, any gymnasium id, or one of the user's own.

All are vectorised and behind one interface.

One of the user's own is `package.module:name`: an id that the module registers with gymnasium; else a class or function
of it, which takes `num_environments` and makes an `Environment`, or takes nothing and makes a `gymnasium.Env`.
"""

import difflib
import importlib
import inspect
import re
import warnings

from impala import own
from impala.types import Environment

OWN = {
    "catch": "Catch", "cliff_walking": "CliffWalking", "memory_chain": "MemoryChain", "river_swim": "RiverSwim",
    "seek_avoid": "SeekAvoid", "stateless_cartpole": "StatelessCartPole",
}  # fmt: skip


def make(
    name: str, *, num_environments: int, protocol: str = "paper2018", action_set: str = "protocol",
    num_threads: int = 1, max_episode_frames: int = 108_000, with_picture: bool = False,
) -> Environment:  # fmt: skip
    """Makes `num_environments` environments called `name`.

    Args:
      protocol, action_set, num_threads, max_episode_frames: for Atari games only.
      with_picture: `picture()` returns what a person would see of the first environment, RGB [H, W, 3].
    """
    if name.startswith("atari:"):
        from impala.environments import atari

        return atari.Atari(
            name.removeprefix("atari:"),
            num_environments=num_environments, protocol=protocol, action_set=action_set, num_threads=num_threads,
            max_episode_frames=max_episode_frames, with_picture=with_picture,
        )  # fmt: skip
    if name.startswith("minatar:"):
        from impala.environments import minatar

        return minatar.MinAtar(name.removeprefix("minatar:"), num_environments=num_environments)
    if name in OWN:
        module = importlib.import_module(f"impala.environments.{name}")
        part = getattr(module, OWN[name])  # some draw their observation, and need nothing for it
        return own.call(part, num_environments=num_environments, with_picture=with_picture)
    from impala.environments import gymnasium_environment

    if own.is_own(name) and (part := _own_part(name)):
        if "num_environments" in inspect.signature(part).parameters:
            return part(num_environments=num_environments)
        from impala.environments import handed_in

        id_ = handed_in.name_of(part)
        made = gymnasium_environment.Gymnasium(id_, num_environments=num_environments, with_picture=with_picture)
        made.spec = made.spec._replace(name=name)
        return made
    return gymnasium_environment.Gymnasium(name, num_environments=num_environments, with_picture=with_picture)


def _own_part(name: str):
    """Returns the class or function that `package.module:name` is; None if the module registers it with gymnasium."""
    import gymnasium

    module, _, attribute = name.partition(":")
    importlib.import_module(module)
    return None if attribute in gymnasium.registry else own.load(name)


def fault(environment: Environment) -> str | None:
    """Plays a few steps; returns the first field that is not as the environment announced it, or None."""
    from impala.environments import trials

    with warnings.catch_warnings():  # gymnasium warns of the same in several lines
        warnings.simplefilter("ignore")
        return trials.fault(environment)


# Loading one ends the whole process: ale-py calls C's exit.
_FOR_TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}


def check_name(name: str) -> str | None:
    """Returns None for a known name, else one line that says what is wrong, with the nearest name; no TensorFlow."""
    if name in OWN:
        return None
    if "," in name:
        return f"environment.name: {name!r} is no name; of several tasks expected a list, like [catch, river_swim]"
    if name.startswith("atari:"):
        from ale_py import roms

        games, game = roms.get_all_rom_ids(), name.removeprefix("atari:")
        if game in _FOR_TWO_PLAYERS:
            return f"environment.name: {name!r} is for two players, which ale-py does not load; expected a game for one"
        return None if game in games else _unknown(name, [f"atari:{g}" for g in games])
    if name.startswith("minatar:"):
        import importlib.util

        from impala.environments import minatar

        if name.removeprefix("minatar:") not in minatar.GAMES:
            return _unknown(name, [f"minatar:{g}" for g in minatar.GAMES])
        if importlib.util.find_spec("minatar") is None:
            return f"environment.name: {name!r} needs the package minatar; pip install 'impala[minatar]'"
        return None
    import gymnasium

    from impala.environments import handed_in

    bare = name.removeprefix("ale_py:")  # the module that registers ALE/Pong-v5
    registered = gymnasium.registry.get(bare)
    if registered is None and name.startswith(handed_in.PREFIX):
        return (
            f"environment.name: {name!r} was handed in to another process, as a class or a function; expected "
            "impala.Impala.load(PATH, ENVIRONMENT), which evaluates and trains it"
        )
    if registered is None or str(registered.entry_point).startswith("ale_py"):  # ale_py's ids, once it is imported
        if game := _atari_game(bare):
            return f"environment.name: {name!r} is an Atari game; expected atari:{game}"
    others = [known for known in gymnasium.registry if not known.startswith("ALE/")]
    return None if registered or ":" in name else _unknown(name, [*others, *OWN])


_ATARI_ID = re.compile(r"(?:ALE/)?([A-Za-z0-9_]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


def _atari_game(name: str) -> str | None:
    """Returns the game that a name of gymnasium's means, like ALE/Pong-v5, PongNoFrameskip-v4 or Pong-ram-v0."""
    from ale_py import roms

    games = {game.replace("_", ""): game for game in roms.get_all_rom_ids()}  # space_invaders is SpaceInvaders there
    meant = _ATARI_ID.fullmatch(name)
    return meant and games.get(meant[1].replace("_", "").lower())


def _unknown(name: str, candidates: list[str]) -> str:
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.7)
    expected = f"atari:<game>, minatar:<game>, {', '.join(OWN)} or a gymnasium id"
    hint = f"; did you mean {near[0]}?" if near else ""
    if not near and name not in OWN and re.search(r"-v\d+$", name):  # looks like an id that another package registers
        hint = f", one of another package with the module that registers it: my_package.my_module:{name}"
    return f"environment.name: {name!r} is unknown; expected {expected}{hint}"
