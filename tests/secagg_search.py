"""A search over servers that lie: whom they tell which survivors, and what opens then."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from normec.errors import BadInput
from normec.secagg.client import check_counted
from normec.secagg.plan import Member, Plan


def plan_of(n: int, min_honest: int, colluders: int) -> Plan:
    members = tuple(Member(f"{i:03}", b"", b"") for i in range(n))
    return Plan(experiment="", attempt="", members=members, terms=b"", min_honest=min_honest, colluders=colluders)


@dataclass
class Rules:
    """Which rules honest clients keep: on missing uploads, and on signatures of what the counted have seen."""

    missing: bool = True
    contexts: bool = True

    def accepts(self, plan: Plan, name: str, offered: set[str], counted: set[str], same_context: set[str]) -> bool:
        if self.contexts and not counted <= same_context:
            return False
        try:
            check_counted(plan, name, offered, counted)
        except BadInput as error:
            return not self.missing and "are missing of" in str(error)
        return True


def opened(plan: Plan, views: dict[str, tuple[frozenset[str], set[str]]], liars: set[str]) -> list[set[str]]:
    """The sets of honest clients of which the server learns the sum alone.

    views: by honest client that answers, whose offers it uses and who is counted, as it was told. Colluders give both of their shares.
    """
    needed = plan.threshold - len(liars)
    of_seed, of_key = Counter(), Counter()
    for offered, counted in views.values():
        of_seed.update(counted)
        of_key.update(offered - counted)
    seeds = {name for name in plan.by_name if of_seed[name] >= needed}
    keys = {name for name in plan.by_name if of_key[name] >= needed}
    sums = [{name} for name in sorted((seeds & keys) - liars)]
    for offered in {offered for offered, _ in views.values()}:
        together = set(offered) - keys - liars  # whose masks of pairs cancel in their sum, and in no part of it
        uploaded = {name for name, (seen, _) in views.items() if seen == offered}
        if together and together <= seeds and together <= uploaded:
            sums.append(together)
    return sums


def smallest_sum(plan: Plan, tries: int, rules: Rules, generator: random.Random) -> int:
    """The fewest honest clients in a sum that opens, over so many strategies of the server and of as many colluders as planned."""
    names = list(plan.by_name)
    liars, honest = set(names[len(names) - plan.colluders :]), names[: len(names) - plan.colluders]
    smallest = len(names) + 1
    for _ in range(tries):
        views = _lies(plan, names, honest, liars, rules, generator)
        for each in opened(plan, views, liars):
            smallest = min(smallest, len(each))
    return smallest


def _lies(
    plan: Plan, names: list[str], honest: list[str], liars: set[str], rules: Rules, generator: random.Random
) -> dict[str, tuple[frozenset[str], set[str]]]:
    """One strategy: honest clients in up to three contexts, each told of other survivors; victims are called missing in turns."""
    contexts, needed = generator.choice((1, 1, 2, 3)), plan.threshold - len(liars)
    place = {name: generator.randrange(contexts) for name in honest}
    called: Counter[str] = Counter()
    victims = set(generator.sample(names, generator.randint(0, len(names))))
    views = {}
    for name in generator.sample(honest, len(honest)):
        here = {other for other in honest if place[other] == place[name]}
        seed = random.Random(f"{place} {place[name]}")  # the offers of a context are the same to all in it
        others = [other for other in names if other not in here]
        offered = frozenset(here | set(seed.sample(others, len(others) - seed.choice((0, 0, seed.randint(0, len(others)))))))
        may_be_counted = (here if rules.contexts else set(honest)) | liars
        allowed = plan.may_be_missing(len(offered)) if rules.missing else len(offered) - plan.fewest
        absent = offered - may_be_counted
        choices = [victim for victim in sorted(offered & victims - absent) if victim != name and called[victim] < needed]
        generator.shuffle(choices)
        choices.sort(key=called.__getitem__)
        counted = set(offered) - absent - set(choices[: max(0, allowed - len(absent))])
        if rules.accepts(plan, name, set(offered), counted, here | liars):
            views[name] = (offered, counted)
            called.update(offered - counted)
    return views
