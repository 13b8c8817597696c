"""Choose one: `atari:<game>`, `minatar:<game>`, one of `OWN` by its name, or any gymnasium id.

All are vectorised and behind one interface.

To bring your own environment, write a class with the members of `Environment` and hand it to an actor, or
register it with gymnasium and give its id.
"""

import difflib
import importlib

from impala.types import Environment

OWN = {"catch": "Catch", "cliff_walking": "CliffWalking", "river_swim": "RiverSwim", "seek_avoid": "SeekAvoid"}


def make(
    name: str, *, num_environments: int, protocol: str = "paper2018", action_set: str = "protocol",
    num_threads: int = 1, with_picture: bool = False,
) -> Environment:  # fmt: skip
    """Makes `num_environments` environments called `name`.

    Args:
      protocol, action_set, num_threads: of Atari games.
      with_picture: `picture()` returns what a person would see of the first environment, RGB [H, W, 3].
    """
    if name.startswith("atari:"):
        from impala.environments import atari

        return atari.Atari(
            name.removeprefix("atari:"),
            num_environments=num_environments, protocol=protocol, action_set=action_set, num_threads=num_threads,
            with_picture=with_picture,
        )  # fmt: skip
    if name.startswith("minatar:"):
        from impala.environments import minatar

        return minatar.MinAtar(name.removeprefix("minatar:"), num_environments=num_environments)
    if name in OWN:
        module = importlib.import_module(f"impala.environments.{name}")
        return getattr(module, OWN[name])(num_environments=num_environments)
    from impala.environments import gymnasium_environment

    return gymnasium_environment.Gymnasium(name, num_environments=num_environments, with_picture=with_picture)


def check_name(name: str) -> str | None:
    """Returns None for a known name, else one line that says what is wrong, with the nearest name; no TensorFlow."""
    if name in OWN:
        return None
    if name.startswith("atari:"):
        from ale_py import roms

        games, game = roms.get_all_rom_ids(), name.removeprefix("atari:")
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

    known = list(gymnasium.registry)
    return None if name in known or ":" in name else _unknown(name, [*known, *OWN])


def _unknown(name: str, candidates: list[str]) -> str:
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    expected = f"atari:<game>, minatar:<game>, {', '.join(OWN)} or a gymnasium id"
    return f"environment.name: {name!r} is unknown; expected {expected}{hint}"
