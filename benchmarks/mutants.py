"""Mutants: a package with one thing wrong in it, again and again, to see whether its unit tests notice.

    python benchmarks/mutants.py accounting [--count 300] [--seed 0] [--minutes 60] [--only FILE] [--show]

A seeded choice of `--count` changes to `reticent/PACKAGE`: a comparison turned or moved to its border, an operator replaced,
a number moved, `and` for `or`, a condition negated, a returned value dropped, a statement left out. For each, those tests in
`tests/PACKAGE` that run the changed line (found by coverage; those marked full or peers left out) run in a copy of the
repository, the fastest first, in a fork of a process that has the heavy imports behind it. A failure, an error or far more
than the usual time counts as killed. What survives is listed with its place and its change; some of it is no mistake at all
(an equivalent mutant, a bound of effort), and has to be judged.
"""

import argparse
import ast
import copy
import importlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitAnd,),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the file, the line, what was there, what is there now, and the whole changed source."""

    file: Path
    line: int
    last: int
    before: str
    after: str
    source: str


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node can be mistaken for."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in COMPARISONS.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [kind()], node.comparators)
    elif isinstance(node, ast.BinOp):
        for kind in OPERATORS.get(type(node.op), ()):
            yield ast.BinOp(node.left, kind(), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield ast.Constant(node.value + 1)
            if node.value not in (0, 1):
                yield ast.Constant(node.value * 2)
    elif isinstance(node, (ast.If, ast.While)):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, (ast.AugAssign, ast.Raise)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants(file: Path) -> Iterator[Mutant]:
    """Every change of a file, but for docstrings, messages, annotations and imports under TYPE_CHECKING."""
    tree = ast.parse(file.read_text())
    for place, node in _places(tree):
        for changed in changes(node):
            changed = ast.copy_location(copy.deepcopy(changed), node)
            whole = copy.deepcopy(tree)
            _put(whole, place, changed)
            ast.fix_missing_locations(whole)
            yield Mutant(file, node.lineno, _last(node), _short(node), _short(changed), ast.unparse(whole))


Place = tuple[tuple[str, int | None], ...]


def _places(tree: ast.AST, at: Place = ()) -> Iterator[tuple[Place, ast.AST]]:
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_comment") or (name == "exc" and isinstance(tree, ast.Raise)):
            continue
        if isinstance(tree, ast.AnnAssign) and name != "value":
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_left_alone(node):
                continue
            place = (*at, (name, index))
            if hasattr(node, "lineno"):
                yield place, node
            yield from _places(node, place)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _put(tree: ast.AST, place: Place, changed: ast.AST) -> None:
    for name, index in place[:-1]:
        value = getattr(tree, name)
        tree = value if index is None else value[index]
    name, index = place[-1]
    if index is None:
        setattr(tree, name, changed)
    else:
        getattr(tree, name)[index] = changed


def _last(node: ast.AST) -> int:
    # Of a statement with a body its first line is enough: the condition is there.
    return node.lineno if isinstance(node, (ast.If, ast.While)) else node.end_lineno or node.lineno  # type: ignore[attr-defined]


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 90 else text[:87] + "..."


def copied(to: Path) -> None:
    """A copy of the repository's working tree, so that nothing here is touched."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes((ROOT / name).read_bytes())


HEAVY = (
    "numpy",
    "scipy.fft",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.special",
    "scipy.stats",
    "hypothesis",
    "dp_accounting",
)
NOT = "not full and not peers"


class Tests:
    """The unit tests of a package in a copy of the repository: which of them run which line, and how long each takes."""

    def __init__(self, place: Path, package: str) -> None:
        self.place, self.package = place, package
        report = place / "usual.xml"
        if self.run([f"tests/{package}", f"--cov=reticent/{package}", "--cov-context=test", "--cov-report=",
                     f"--junitxml={report}", "-o", "junit_family=xunit1"], 3600):  # fmt: skip
            sys.exit("The tests fail without any mutant; mend them first.")
        import coverage

        self.seconds = {}
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('file')}::{case.get('name')}"
            self.seconds[name] = self.seconds.get(name, 0.0) + float(case.get("time") or 0)
        data = coverage.CoverageData(str(place / ".coverage"))
        data.read()
        self.lines = {Path(file).relative_to(place): data.contexts_by_lineno(file) for file in data.measured_files()}

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that run the changed lines, the fastest first; all of them for what runs when it is imported."""
        contexts = self.lines.get(mutant.file.relative_to(ROOT), {})
        found = {one for line in range(mutant.line, mutant.last + 1) for one in contexts.get(line, ())}
        if not found:
            return []
        named = {one.rpartition("|")[0] for one in found}
        if "" in found:
            named = set(self.seconds)
        return sorted(named & set(self.seconds), key=self.seconds.__getitem__)

    def survives(self, mutant: Mutant) -> bool:
        """Whether all tests of a mutant pass; where none runs its line, it does."""
        tests = self.of(mutant)
        if not tests:
            return True
        target = self.place / mutant.file.relative_to(ROOT)
        before = target.read_bytes()
        target.write_text(mutant.source)
        try:
            return self.run(tests, 60 + 10 * sum(map(self.seconds.__getitem__, tests))) == 0
        finally:
            target.write_bytes(before)

    def run(self, arguments: list[str], limit: float) -> int:
        """pytest's exit code, in a fork of this process, which has not imported anything of the package."""
        child = os.fork()
        if child == 0:
            os.setsid()
            os.chdir(self.place)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            sys.path.insert(0, str(self.place))
            # Tests that start processes of their own find the mutant too.
            os.environ["PYTHONPATH"] = str(self.place)
            code = 1
            try:
                import pytest

                common = ["-x", "-q", "-m", NOT, "-p", "no:cacheprovider", "--hypothesis-seed=0", "--rootdir=."]
                code = int(pytest.main([*arguments, *common]))
            finally:
                os._exit(code)
        end = time.monotonic() + limit
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("package", help="a folder of reticent and of tests")
    parser.add_argument("--count", type=int, default=300, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many")
    parser.add_argument("--only", default="", help="only files with this in their name")
    parser.add_argument("--show", action="store_true", help="tell each as it is tried")
    given = parser.parse_args()
    files = sorted((ROOT / "reticent" / given.package).rglob("*.py"))
    every = [mutant for file in files if given.only in file.name for mutant in mutants(file)]
    chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
    print(f"{given.package}: {len(chosen)} of {len(every)} mutants, seed {given.seed}", flush=True)
    end = time.monotonic() + 60 * given.minutes
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in HEAVY:
        importlib.import_module(name)
    survived, tried = [], 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        copied(place)
        tests = Tests(place, given.package)
        for mutant in chosen:
            if time.monotonic() > end:
                print(f"Time is over after {tried} mutants.")
                break
            start = time.monotonic()
            alive = tests.survives(mutant)
            tried += 1
            told = f"{mutant.file.relative_to(ROOT)}:{mutant.line}: {mutant.before}  ->  {mutant.after}"
            if alive:
                survived.append(told if tests.of(mutant) else f"{told}  (no test runs this line)")
            if given.show:
                print(f"{'SURVIVED' if alive else 'killed'} {time.monotonic() - start:5.1f} s  {told}", flush=True)
    print(f"\nkilled {tried - len(survived)} of {tried} ({1 - len(survived) / max(tried, 1):.1%}); survived:")
    for told in sorted(survived):
        print(f"  {told}")


if __name__ == "__main__":
    main()
