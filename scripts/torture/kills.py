"""Kills at any point and any moment; rerunning the command must give the same bytes.

Each case takes a scenario, kills one of its commands, looks at what is on disk (whole, of the old
state or of the new one, or not there where it was not there before), and runs the same commands
again, now and then killed again. In the end there must be the bytes of a run that nobody killed,
and nothing else.
"""

import random

from scripts.torture.faulty_files import KILLS, Trouble, applies
from scripts.torture.scenarios import Case, Stage, section_of
from scripts.torture.tally import Tally

HOWS = (*KILLS, "clock")


def draw(number: int, seed: int, stage: Stage) -> Case:
    """Return a case of a seed; its number alone decides the kind of kill."""
    choose = random.Random(f"{seed} {number}")
    how = HOWS[number % len(HOWS)]
    command = choose.randrange(len(stage.points))

    def kill(how: str) -> Trouble:
        points = stage.points[command]
        fitting = [k for k, point in enumerate(points) if applies(how, 0, point.kind)]
        return Trouble(choose.choice(fitting), how, seed=choose.randrange(1 << 30))

    first = None if how == "clock" else kill(how)
    more = tuple(kill(choose.choice(KILLS)) for _ in range(choose.choice([0, 0, 0, 0, 1, 3])))
    return Case(stage.name, command, first, choose.random(), more)


def run_case(stage: Stage, case: Case) -> list[str]:
    """Run a case; return what went wrong."""
    stage.begin()
    for number in range(case.command):
        stage.run(number)
    after = None if case.trouble else case.moment * stage.seconds[case.command]
    ended = stage.run(case.command, case.trouble, kill_after=after)
    if not ended.was_killed and ended.code != 0:
        return [f"it exited with {ended.code}: {ended.stderr.strip()}"]
    damage = stage.find_damage()
    return damage or stage.finish(case.command, case.more)


def _count(tally: Tally, case: Case) -> None:
    tally.count("by kind", case.trouble.how if case.trouble else "clock")
    tally.count("killed again", str(len(case.more)))


run = section_of("kills", draw, run_case, _count)
