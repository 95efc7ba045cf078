"""Storage faults: each error at each call must be reported and leave the old state intact.

Each case takes a scenario and has one call of one of its commands fail, alone or with all that
come after. The command may do without that call, and must then do all else; otherwise it ends with
one sentence, which names a file, the reason and what to do, and leaves the old state or the new
one. Once the fault is gone the same command ends with the bytes of a run without any.
"""

import errno
import os
import random
import re
from pathlib import Path

from scripts.torture.faulty_files import Trouble, applies
from scripts.torture.scenarios import Case, Ended, Stage, differences, read_tree, section_of
from scripts.torture.tally import Tally

_CODES = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT)
# Kinds of trouble: how, error, whether it lasts.
FAULTS: dict[str, tuple[str, int, bool]] = {
    "short": ("short", 0, False),
    "gone": ("gone", 0, False),
    **{errno.errorcode[code]: ("fail", code, False) for code in _CODES},
    **{f"{errno.errorcode[code]} from then on": ("fail", code, True) for code in _CODES},
}
# Where a command may go on with a file too many: it is removed when it runs the next time.
_CLEANING = ("unlink", "rmdir", "list", "stat", "open")


def draw(number: int, seed: int, stage: Stage) -> Case:
    """Return a case of a seed; its number alone decides the fault."""
    choose = random.Random(f"{seed} {number}")
    how, error, lasting = list(FAULTS.values())[number % len(FAULTS)]
    command = choose.randrange(len(stage.points))
    points = stage.points[command]
    # Kinds first: there are many reads and few renames.
    kind = choose.choice(sorted({p.kind for p in points if applies(how, error, p.kind)}))
    at = choose.choice([k for k, point in enumerate(points) if point.kind == kind])
    return Case(stage.name, command, Trouble(at, how, error, lasting), point=points[at])


def run_case(stage: Stage, case: Case) -> list[str]:
    """Run a case; return what went wrong."""
    folder = stage.begin()
    assert case.trouble is not None
    assert case.point is not None
    for number in range(case.command):
        stage.run(number)
    ended = stage.run(case.command, case.trouble)
    if case.trouble.how == "gone":  # a removed file may stay missing
        return [] if ended.code == 0 else _unclear(ended, case, stage)
    if ended.code == 0:
        found = differences(read_tree(folder), stage.states[case.command + 1])
        if case.point.kind in _CLEANING:
            found = [line for line in found if not line.endswith("is left over")]
        return found
    wrong = [*_unclear(ended, case, stage), *stage.find_damage()]
    return wrong or stage.finish(case.command)


def _unclear(ended: Ended, case: Case, stage: Stage) -> list[str]:
    """What is amiss with the end of a command that failed."""
    if ended.code != 1:
        return [f"it exited with {ended.code}: {ended.stderr.strip()[-2000:]}"]
    said = ended.stderr.strip()
    if not re.fullmatch(r"sbm: .*", said):
        return [f"it printed more than one line: {said[-2000:]}"]
    wrong = []
    assert case.trouble is not None
    reason = os.strerror(case.trouble.error)
    if case.trouble.how == "fail" and reason not in said:
        wrong.append("the reason is missing")
    if not any(word in said for word in _names(case, stage)):
        wrong.append("names no file")
    if ";" not in said:
        wrong.append("the remedy is missing")
    return [f"{' and '.join(wrong)}: {said}"] if wrong else []


def _names(case: Case, stage: Stage) -> set[str]:
    """Words that may stand for what could not be read or written."""
    name = case.point.name.removesuffix(".tmp") if case.point else ""
    paths = [name, *stage.states[0], *stage.states[-1]]
    return {part for path in paths for part in Path(path).parts or (".", str(stage.folder))}


def _count(tally: Tally, case: Case) -> None:
    assert case.trouble is not None
    assert case.point is not None
    tally.count("by call", case.point.kind)
    tally.count("by fault", str(case.trouble).partition(" at point")[0])


run = section_of("faults", draw, run_case, _count)
