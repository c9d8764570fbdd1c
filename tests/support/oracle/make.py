"""Makes the oracle's instances and their images, each proven.

    python -m tests.support.oracle.make --out FOLDER [--each 5] [--seed 0] [--packages toolz,click]

Invariants:
- Same packages, number, seed and interpreter: same records.
- The tree that an agent sees has the bug and not the tests that catch it, in one commit.
- An id names its content, so an image of another making never passes for this one's.
"""

import argparse
import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import Instance, Source
from swe_rl.dataset.records import read_instances, write_instances
from swe_rl.env.bugs.statement import problem_statement
from swe_rl.env.grading.swebench_spec import complete_instance
from swe_rl.env.source_build.build import build_source
from swe_rl.env.source_build.image import ensure_image
from tests.support.oracle.container import Container, container
from tests.support.oracle.measure import PARSER, measured, suite
from tests.support.oracle.mutants import Mutant, UnfitError, diff, hide_tests, mutants
from tests.support.oracle.packages import PACKAGES, PYTHON, Package

EACH = 5
SOURCES = Path("cache/workspaces/sources")  # where the application looks with paths.cache=OUT/cache
_SUITE_S = 120.0
_SLOWER = 5.0  # a mutant may take so many times the sound suite's time
_SPARE_S = 10.0
_FIX = "reverse-apply patch and test_patch"
_CREATED = "2024-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Maker:
    """`engine`: an ImageEngine whose `client` is Docker's SDK's; `cache`: for what is downloaded and built."""

    engine: Any
    cache: Path
    seed: int
    say: Callable[[str], None]

    def instances(self, package: Package, count: int) -> Iterator[Instance]:
        """`count` proven instances of a package, or fewer where its functions run out."""
        sound = _sound(package)
        tree = build_source(sound, self.cache).tree
        ensure_image(sound, self.cache, self.engine, self.say)
        rng = random.Random(f"{self.seed}/{package.sdist}")
        modules = {_below(tree, path): path.read_text(encoding="utf-8") for path in package.modules(tree)}
        made = tried = 0
        with container(self.engine.client, sound.image) as box:
            search = _Search(box, package, tree)
            for mutant in mutants(modules, search.tests, rng):
                if made == count:
                    break
                try:
                    instance = self._proven(package, mutant, search.test_patch(mutant), rng)
                except UnfitError:
                    tried += 1
                    continue
                made, tried = made + 1, tried + 1
                self.say(
                    f"{instance.instance_id}: {len(instance.fail_to_pass)} tests fail to pass, "
                    f"{len(instance.pass_to_pass)} pass to pass ({made} of {tried} bugs are caught)"
                )
                yield instance
        self.engine.client.images.remove(sound.image)

    def _proven(self, package: Package, mutant: Mutant, test_patch: str, rng: random.Random) -> Instance:
        """Raises UnfitError."""
        instance = _instance(package, mutant, test_patch, rng)
        ensure_image(instance, self.cache, self.engine, self.say)
        try:
            return measured(self.engine.client, instance)
        except UnfitError:
            self.engine.client.images.remove(instance.image)
            raise


class _Search:
    """Which tests tell a bug from sound code: the whole suite, mutant after mutant, in one container."""

    def __init__(self, box: Container, package: Package, tree: Path) -> None:
        started_s = time.monotonic()
        self._passed = {test for test, status in suite(box, package.tests, _SUITE_S).items() if status == "PASSED"}
        self._timeout_s = _SPARE_S + _SLOWER * (time.monotonic() - started_s)
        if not self._passed:
            raise UnfitError(f"no test of {package.sdist} passes in {_SUITE_S:g} s")
        self._box, self._package = box, package
        names = {test.split("::")[0] for test in self._passed}
        self._files = {name: (tree / name).read_text(encoding="utf-8") for name in sorted(names)}

    @property
    def tests(self) -> str:
        """All of their text."""
        return "\n".join(self._files.values())

    def test_patch(self, mutant: Mutant) -> str:
        """Puts the tests that catch the bug back. Raises UnfitError."""
        naming = [name for name, text in self._files.items() if re.search(rf"\b{mutant.site.function}\b", text)]
        self._box.put({f"/testbed/{mutant.path}": mutant.buggy})
        try:
            failing = self._failing(" ".join(naming)) if naming else set()
            if not failing:
                raise UnfitError("no test that names it fails")
            failing = self._failing(self._package.tests)  # they are seconds, and most mutants do not come so far
        finally:
            self._box.put({f"/testbed/{mutant.path}": mutant.sound})
        hidden = hide_tests(self._files, failing)
        return "".join(diff(path, shown, self._files[path]) for path, shown in hidden.items())

    def _failing(self, tests: str) -> set[str]:
        """Raises UnfitError."""
        found = suite(self._box, tests, self._timeout_s)
        if not found:
            raise UnfitError("the tests do not end, or cannot be collected")
        files = {test.split("::")[0] for test in found}
        return {test for test in self._passed if test.split("::")[0] in files and found.get(test) != "PASSED"}


def _sound(package: Package) -> Instance:
    """The distribution as it is, as an instance without a bug: its image is where mutants are tried."""
    name = package.sdist.lower()
    one = Instance(name, package.repo, "0" * 40, "none", "", "", (), (), package.version, image=f"swe_rl/oracle:{name}")
    return complete_instance(replace(one, source=Source(package.sdist, _FIX, PYTHON)))


def _instance(package: Package, mutant: Mutant, test_patch: str, rng: random.Random) -> Instance:
    content = hashlib.sha1(f"{package.sdist}\n{mutant.gold_patch}\n{test_patch}".encode(), usedforsecurity=False)
    statement = problem_statement(
        rng,
        family=mutant.site.swap.family,
        function=mutant.site.function,
        path=mutant.path,
        line=mutant.buggy.split("\n")[mutant.site.line - 1],
    )
    one = Instance(
        instance_id=f"{package.repo.replace('/', '__')}-{int(content.hexdigest()[:5], 16)}",
        repo=package.repo,
        base_commit=content.hexdigest(),
        environment_setup_commit=content.hexdigest(),
        problem_statement=statement,
        patch=mutant.gold_patch,
        test_patch=test_patch,
        fail_to_pass=(),
        pass_to_pass=(),
        version=package.version,
        log_parser=PARSER,
        eval_type="pass_and_fail",
        created_at=_CREATED,
        source=Source(package.sdist, _FIX, PYTHON),
    )
    return complete_instance(one)


def _below(tree: Path, path: Path) -> str:
    return path.relative_to(tree).as_posix()


def chosen(names: str) -> list[Package]:
    """`toolz,click` -> those packages; all for an empty text. Raises ValueError."""
    wanted = [name for name in names.split(",") if name]
    known = {package.sdist.rpartition("-")[0]: package for package in PACKAGES}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"no such package: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted] or list(PACKAGES)


def make(
    out: Path, packages: Sequence[Package], *, each: int, seed: int, address: str, say: Callable[[str], None] = print
) -> list[Instance]:
    """Writes `out`/instances.jsonl when all are there. Raises BuildError, UnfitError, DiskError."""
    from swe_rl.env.image_engine import DockerEngine

    maker = Maker(DockerEngine.connect(address), out / SOURCES, seed, say)
    found = [one for package in packages for one in _kept_or_made(maker, out / "made", package, each)]
    write_instances(out / "instances.jsonl", found)
    return found


def _kept_or_made(maker: Maker, folder: Path, package: Package, each: int) -> list[Instance]:
    """A package's instances are kept when all are there, so that an interrupted making goes on with the next one."""
    path = folder / f"{package.sdist}-seed{maker.seed}-{each}.jsonl"
    if path.is_file():
        found = read_instances(path)
        for one in found:
            ensure_image(one, maker.cache, maker.engine, maker.say)
        return found
    found = list(maker.instances(package, each))
    if not found:
        raise UnfitError(f"no bug that was put into {package.sdist} is caught by its tests; leave the package out")
    folder.mkdir(parents=True, exist_ok=True)
    write_instances(path, found)
    return found


def main() -> None:
    from tests.support.oracle.engine import address_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=int, default=EACH, help="instances of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", default="", help="names, separated by commas; all without it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    made = make(
        options.out, chosen(options.packages), each=options.each, seed=options.seed, address=address_of("docker")
    )
    print(f"{len(made)} instances in {options.out / 'instances.jsonl'}, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
