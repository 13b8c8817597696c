"""Choose one: `atari:<game>`, `catch`, or any gymnasium id; all vectorised and all behind one interface.

To bring your own environment, write a class with the four members of `Environment` and hand it to an actor, or
register it with gymnasium and give its id.
"""

import difflib

from impala.types import Environment


def make(name: str, *, num_environments: int, protocol: str = "paper2018", num_threads: int = 1) -> Environment:
    """Makes `num_environments` environments called `name`; `protocol` and `num_threads` serve Atari only."""
    if name.startswith("atari:"):
        from impala.environments import atari

        return atari.Atari(
            name.removeprefix("atari:"),
            num_environments=num_environments, protocol=protocol, num_threads=num_threads,
        )  # fmt: skip
    if name == "catch":
        from impala.environments import catch

        return catch.Catch(num_environments=num_environments)
    from impala.environments import gymnasium_environment

    return gymnasium_environment.Gymnasium(name, num_environments=num_environments)


def check_name(name: str) -> str | None:
    """Returns None for a known name, else one line that says what is wrong, with the nearest name; no TensorFlow."""
    if name == "catch":
        return None
    if name.startswith("atari:"):
        from ale_py import roms

        games, game = roms.get_all_rom_ids(), name.removeprefix("atari:")
        return None if game in games else _unknown(name, [f"atari:{g}" for g in games])
    import gymnasium

    known = list(gymnasium.registry)
    return None if name in known or ":" in name else _unknown(name, known + ["catch"])


def _unknown(name: str, candidates: list[str]) -> str:
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"environment.name: {name!r} is unknown; expected atari:<game>, catch or a gymnasium id{hint}"
