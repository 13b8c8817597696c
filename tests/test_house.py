"""The house: who may import whom, how long functions are, how wide signatures, how much IMPALA is to read.

Read from the source; an import inside a function counts too.

types, returns  ◀─ corrections ◀─ losses
types           ◀─ environments, networks, acting, replay, learning, monitoring       stations: never each other
sampling        ◀─ acting, distributions ◀─ losses, networks                          (it rests on types alone)
all of these    ◀─ agents: what is learned ◀─ nodes: what a process runs ◀─ programs: where
agents, nodes   ◀─ lockstep, evaluation ◀─ api, lab, bench ◀─ cli
config          ◀─ agents and everything right of them                                launching ◀─ nodes, training, bench, cli
"""

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from impala.config import uses
from impala.config.sections import CORRECTIONS_OF

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "impala"
STATIONS = {"corrections", "losses", "environments", "networks", "acting", "replay", "learning", "monitoring"}
BASE = {"types", "arrays", "returns", "sampling", "distributions", "timing", "traces", "own"}

# A unit is a folder of impala/, or a file directly in it. Each may import itself and these.
MAY_IMPORT = {
    "types": set(),
    "returns": set(),
    "sampling": {"types"},
    "distributions": {"types", "sampling"},
    "provenance": set(),
    "timing": set(),
    "traces": set(),
    "own": set(),
    "devices": set(),
    "arrays": set(),
    "config": {"own"},
    "corrections": {"types", "returns"},
    "losses": {"types", "returns", "distributions", "corrections"},
    "environments": {"types", "own"},
    "networks": {"types", "distributions", "own"},
    "acting": {"types", "sampling", "timing", "traces"},
    "replay": {"types", "timing", "traces"},
    "learning": {"types", "timing", "traces", "arrays"},
    # `impala plot` refuses a missing run as the command line does, with a ConfigError: an error class, not a configuration.
    "monitoring": {"types", "config"},
    # A run's folder holds the resolved configuration and compares it on resume.
    "launching": {"types", "config", "provenance", "own", "arrays"},
    # What configures a network, a loss and a learner is written once: in `agents`.
    "agents": {*BASE, *STATIONS, "config", "devices"},
    "nodes": {*BASE, *STATIONS, "config", "launching", "agents"},
    "programs": {"types", "replay", "acting", "config", "launching", "agents", "nodes"},
    "lockstep": {*BASE, *STATIONS, "config", "agents", "nodes", "programs"},
    "evaluation": {*BASE, *STATIONS, "config", "agents", "nodes"},
    "export": {"losses", "learning", "config", "nodes", "evaluation"},
    "api": {*BASE, *STATIONS, "config", "agents", "nodes", "lockstep", "evaluation"},
    "lab": {*BASE, *STATIONS, "config", "provenance", "agents", "nodes", "lockstep", "evaluation"},
    # It measures the program through processes and limits the threads of its own: `launching.processes`.
    "bench": {*BASE, *STATIONS, "config", "agents", "nodes", "lockstep", "launching"},
    "training": {*BASE, *STATIONS, "config", "devices", "agents", "nodes", "launching"},
    "cli": {"config", "training", "nodes", "launching", "learning", "monitoring", "evaluation", "export", "lab", "bench"},
    "__main__": {"cli"},
    "__init__": set(),  # lazy: it imports whatever is asked for, by name
}
# Of a unit that may be imported in part only: what of it.
ONLY = {
    ("monitoring", "config"): {"ConfigError"},
    ("lockstep", "programs"): {"programs.placements"},
    ("lockstep", "nodes"): {"nodes.parts", "nodes.checking", "nodes.workers", "nodes.working"},
    ("evaluation", "nodes"): {"nodes.checking", "nodes.hangs", "nodes.playing"},
    ("export", "nodes"): {"nodes.checking", "nodes.hangs"},
    ("api", "nodes"): {"nodes.checking", "nodes.parts", "nodes.playing"},
    ("lab", "nodes"): {"nodes.checking", "nodes.hangs", "nodes.parts", "nodes.playing"},
    ("bench", "nodes"): {"nodes.checking", "nodes.parts", "nodes.estimates", "nodes.learner_group"},
    # `impala runs` looks at checkpoints without TensorFlow.
    ("cli", "learning"): {"learning.soundness"},
    ("cli", "nodes"): {"nodes.placing"},  # whether a cluster's hosts can hold a run
    # It serves requests without a program around them.
    ("bench", "launching"): {
        "launching.processes", "launching.peers", "launching.shared_memory", "launching.rpc.client", "launching.rpc.server", "launching.roles",
    },
}
# Packages that cost seconds and hundreds of megabytes, or that are not to be had everywhere: who may import them at all.
HEAVY = {
    "tensorflow": {"returns", "distributions", "corrections", "losses", "networks", "acting", "replay", "learning", "monitoring",
                   "launching", "nodes", "export", "lab", "bench", "traces"},
    "reverb": {"acting", "replay", "launching", "nodes", "bench"},
    "launchpad": {"launching", "nodes", "programs"},
    "gymnasium": {"environments"},
    "ale_py": {"environments"},
}  # fmt: skip


def modules():
    """{module name without "impala.": path} of every file of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


MODULES = modules()


def unit_of(module):
    return module.split(".")[0]


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def imports(path):
    """Returns (line, dotted name, name imported from it or None) of every import statement of a file."""
    return list(_imports(path))


def _imports(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; expected one from impala"
            for alias in node.names:
                yield node.lineno, node.module, alias.name


@functools.cache
def arrows():
    """Returns (importing module, imported module, line, text) within the package."""
    return list(_arrows())


def _arrows():
    for module, path in MODULES.items():
        for line, name, attribute in imports(path):
            if name == "impala" and attribute is None:
                continue
            if name.split(".")[0] != "impala":
                continue
            full = f"{name}.{attribute}" if attribute else name
            inner = full.removeprefix("impala.")
            while inner not in MODULES:  # a class or function: the module that holds it
                assert "." in inner, f"{path}:{line}: {full} is no module of the package"
                inner = inner.rpartition(".")[0]
            yield module, inner, line, full


def test_every_unit_is_in_the_table():
    units = {unit_of(module) for module in MODULES}
    assert units <= set(MAY_IMPORT), f"say in MAY_IMPORT what {units - set(MAY_IMPORT)} may import"
    assert len(MODULES) > 40


def test_no_arrow_against_the_river():
    broken = [
        f"impala/{MODULES[module].relative_to(PACKAGE)}:{line} imports {full}: {unit_of(module)} may import "
        f"{', '.join(sorted(MAY_IMPORT[unit_of(module)])) or 'nothing of the package'}"
        for module, imported, line, full in arrows()
        if unit_of(imported) not in MAY_IMPORT[unit_of(module)] | {unit_of(module)}
    ]
    assert not broken, "\n".join(broken)


def test_what_may_be_imported_in_part_is_imported_in_part():
    broken = []
    for module, imported, line, full in arrows():
        part = ONLY.get((unit_of(module), unit_of(imported)))
        if part and not (imported in part or full.rpartition(".")[2] in part or _uses_only(module, imported, part)):
            broken.append(f"impala/{MODULES[module].relative_to(PACKAGE)}:{line} imports {full}; expected {part} of it")
    assert not broken, "\n".join(broken)


def _uses_only(module, imported, names):
    """Whether a module that is imported whole (`from impala import x as y`) is asked for `names` only."""
    tree = tree_of(MODULES[module])
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for alias in node.names if alias.name == imported
    }  # fmt: skip
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
    }
    return bool(used) and used <= names


@pytest.mark.parametrize("station", sorted(STATIONS - {"corrections", "losses"}))
def test_a_station_never_imports_its_neighbour(station):
    """Written out once more, since the table above could be loosened by accident."""
    assert not MAY_IMPORT[station] & (STATIONS - {station})
    imported = {unit_of(i) for module, i, _, _ in arrows() if unit_of(module) == station}
    assert imported <= {station, *BASE} - {"returns"} | ({"config"} if station == "monitoring" else set())


def find_circle(graph):
    """Returns the nodes of one circle, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return None
        path.append(node)
        for following in sorted(graph.get(node, ())):
            if circle := visit(following):
                return circle
        done.add(path.pop())
        return None

    return next((circle for node in sorted(graph) if (circle := visit(node))), None)


def test_the_finder_finds_circles():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}}) is None


@pytest.mark.parametrize("level", ["units", "modules"])
def test_no_circle(level):
    graph = {}
    for module, imported, _, _ in arrows():
        one, other = (unit_of(module), unit_of(imported)) if level == "units" else (module, imported)
        if one != other:
            graph.setdefault(one, set()).add(other)
    assert find_circle(graph) is None


def test_the_table_itself_has_no_circle():
    assert find_circle(MAY_IMPORT) is None


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_where_they_belong(package):
    users = {
        unit_of(module)
        for module, path in MODULES.items()
        for _, name, _ in imports(path)
        if name.split(".")[0] == package
    }
    assert users <= HEAVY[package]
    assert users, f"nobody imports {package}; is it needed?"


def run(code):
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.split()


def test_the_mathematics_and_the_networks_import_without_reverb_and_launchpad():
    """Not merely unimported: they may be absent."""
    assert run("""if True:
        import importlib, sys
        absent = ["reverb", "launchpad", "gymnasium", "ale_py", "grpc"]
        for name in absent:
            sys.modules[name] = None  # whoever imports it gets an ImportError
        from impala import types, returns, corrections, losses, networks
        from impala.losses import actor_critic
        print("vtrace" in corrections.SCHEMES)
        assert not any(sys.modules.get(name) for name in absent)""") == ["True"]


def test_environments_the_command_line_and_the_dashboard_import_without_tensorflow():
    """An environment-only process, the launcher and the dashboard stay small."""
    run("""if True:
        import sys
        for name in ["tensorflow", "reverb", "launchpad", "ray"]:
            sys.modules[name] = None
        from impala import cli, config, environments, evaluation, types
        from impala.acting import actors, chunks, policies
        from impala.environments import atari, catch, gymnasium_environment
        from impala.monitoring import dashboard, listing, metrics, plots
        from impala.launching import runs
        from impala.learning import soundness""")


def test_programs_and_local_launches_import_without_ray():
    """It is an extra, and only a cluster needs it."""
    run("""if True:
        import sys
        sys.modules["ray"] = None
        from impala import training
        from impala.launching import local, ray_cluster, supervising, threads
        from impala.nodes import placing
        from impala.programs import impala""")


def test_the_package_itself_imports_nothing():
    assert run("import sys; before = set(sys.modules); import impala; print(*(set(sys.modules) - before))") == [
        "impala"
    ]


def test_names_that_do_not_exist_are_attribute_errors():
    run("""if True:
        import impala
        assert not hasattr(impala, "nonsense")
        try:
            from impala import nonsense
        except ImportError as error:
            assert "nonsense" in str(error)
        else:
            raise AssertionError""")


# --- what a program, an agent or a scheme is, a property of the configuration says, not its name


# Who may compare names: what is named there is theirs.
MAY_NAME = {"programs": {"config", "programs"}, "agents and schemes": {"config", "agents", "corrections"}}
NAMED = {("lab.report", "vtrace"): "the scheme that a report compares all others with, if it is one of them"}
AMBIGUOUS = {"none", "is"}  # words of other keys too: a scheme only if it is compared with a `correction`


def comparisons_in(tree):
    """Yields (line, words, attributes) of every ==, !=, in, not in, match and {…}[…]: the strings and the x of `….x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            sides = [node.slice, *filter(None, node.value.keys)]
        else:
            continue
        constants = [part for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)]
        words = {part.value for part in constants if isinstance(part.value, str)}
        yield node.lineno, words, {side.attr for side in sides if isinstance(side, ast.Attribute)}


@functools.cache
def comparisons():
    """The same of every module, with its name before them."""
    return [(module, *found) for module, path in MODULES.items() for found in comparisons_in(tree_of(path))]


def test_nobody_else_asks_which_program_it_is():
    found = [
        f"impala/{MODULES[module].relative_to(PACKAGE)}:{line}: expected a property of Config, such as replays_alone"
        for module, line, words, attributes in comparisons()
        if ("program" in attributes or words & set(uses.AGENTS) - {"impala"})  # which is the package, too
        and unit_of(module) not in MAY_NAME["programs"]
    ]
    assert not found, "\n".join(found)


def test_nobody_else_asks_for_an_agent_or_a_scheme_by_name():
    names = uses.ALL_AGENTS | {word for schemes in CORRECTIONS_OF.values() for word in schemes}
    found = {
        (module, word): f"line {line}"
        for module, line, words, attributes in comparisons()
        for word in words & names
        if (word not in AMBIGUOUS or "correction" in attributes)
        and unit_of(module) not in MAY_NAME["agents and schemes"]
    }
    assert found.keys() == NAMED.keys(), found


def test_the_finder_of_names_finds_them():
    (found,) = comparisons_in(ast.parse("x = config.loss.correction not in ('clear', 'laser')"))
    assert found == (1, {"clear", "laser"}, {"correction"})
    (found,) = comparisons_in(ast.parse("x = {'seed': 1, 'ga3c': 2}[config.program]"))
    assert found == (1, {"seed", "ga3c"}, {"program"})
    (found,) = comparisons_in(ast.parse("match config.program:\n    case 'a3c' | 'dppo':\n        pass"))
    assert found == (1, {"a3c", "dppo"}, {"program"})


# --- how much there is to read


MOST_LINES = 60  # of a function, its docstring not counted
# A function takes at most seven arguments, but where each is a sequence or a coefficient of an equation, and these:
MOST_ARGUMENTS, EQUATIONS = 7, {"corrections", "losses"}
WIDE = {
    "networks.make": 11, "replay.datasets.Feeder.__init__": 9, "nodes.parts.make_actor": 9, "programs.placements.seed": 9,
    "learning.learners.Learner.__init__": 9, "lab.offline.compare": 8, "acting.windows.WindowWriter.__init__": 8,
}  # fmt: skip
PATH_LINES = 1_900  # of code, from environment to weights


@functools.cache
def functions():
    """Returns (module, name with its class, node) of every function of the package."""
    return list(_functions())


def _functions():
    for module, path in MODULES.items():
        for outer in ast.walk(tree_of(path)):
            for node in getattr(outer, "body", []) if isinstance(getattr(outer, "body", None), list) else []:
                if isinstance(node, ast.FunctionDef):
                    within = f"{outer.name}." if isinstance(outer, ast.ClassDef) else ""
                    yield module, within + node.name, node


def lines_of_docstrings(tree):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
    return {line for node in first for line in range(node.lineno, node.end_lineno + 1)}


def num_lines_of_code(path):
    """Counts lines that hold code: no docstrings, comments, blank lines."""
    source, none = path.read_text(), {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in none and t.string]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - lines_of_docstrings(ast.parse(source)))


def test_no_function_is_longer_than_a_screen():
    long = {
        f"{module}.{name}": length
        for module, name, node in functions()
        if (length := node.end_lineno - node.lineno + 1 - len(lines_of_docstrings(node))) > MOST_LINES
    }
    assert not long


def test_no_signature_is_wide():
    wide = {}
    for module, name, node in functions():
        arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len(arguments) - (arguments[:1] == ["self"])
        if count > MOST_ARGUMENTS and unit_of(module) not in EQUATIONS:
            wide[f"{module}.{name}"] = count
    assert wide == WIDE, "narrower ones are taken off the list"


def reading_path():
    """Returns the files that the README's table of stations names."""
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| station | file |") : readme.index("Not on this path")]
    return [ROOT / path for path in dict.fromkeys(re.findall(r"\]\((impala/[\w/]+\.py)\)", table))]


def test_impala_can_be_read_from_end_to_end():
    path = reading_path()
    read = {file.relative_to(ROOT).as_posix(): num_lines_of_code(file) for file in path}
    assert 25 <= len(path) <= 40 and sum(read.values()) <= PATH_LINES, (sum(read.values()), read)
