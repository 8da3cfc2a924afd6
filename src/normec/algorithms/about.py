"""Where a method comes from and what is proven of it, as plain values: tables show them, and the judge of guarantees reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from normec.errors import BadInput

STEP = {"gd": "step", "sgd": "step", "poisson": "step", "ig": "pass", "rr": "pass", "so": "pass"}
"""What the local methods count."""


class Coverage(NamedTuple):
    """The runs that a guarantee of convergence covers; assumptions on losses and stepsizes stand beside it in words.

    local: the local methods, and of each how many steps (or passes) it may take, None for any number. sampling: the cohorts:
    "full" for every client in every round, "poisson", "fixed". noise: whether privacy noise is allowed for.
    """

    local: dict[str, int | None]
    sampling: tuple[str, ...] = ("full",)
    noise: bool = False

    def __str__(self) -> str:
        methods = [f"{method}" if steps is None else f"{method} with one {STEP[method]}" for method, steps in self.local.items()]
        who = {"full": "every client in every round", "poisson": "Poisson cohorts", "fixed": "cohorts of a fixed size"}
        cohorts = " or ".join(who[name] for name in self.sampling)
        return f"{' or '.join(methods)}; {cohorts}; {'with or without' if self.noise else 'without'} noise; the plain server optimizer"


@dataclass(frozen=True, kw_only=True)
class About:
    """Where a method comes from and what is proven of it.

    paper: authors and title. year: of the paper. guarantee: in a few words the rate of convergence, and under which assumptions.
    coverage: which runs the guarantee is about; None where nothing is guaranteed.

    Raises:
        BadInput: for a value of another type, naming it.
    """

    paper: str = "–"
    year: int | None = None
    guarantee: str = "none is stated"
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        for name, kinds, wanted in (
            ("paper", (str,), "a string"),
            ("year", (int, type(None)), "a whole number or None"),
            ("guarantee", (str,), "a string"),
            ("coverage", (Coverage, type(None)), "a normec.Coverage or None"),
        ):
            value = vars(self)[name]
            if type(value) not in kinds:
                raise BadInput(f"About.{name}", value=value, must=f"be {wanted}")

    @property
    def states_a_guarantee(self) -> bool:
        """Whether it says anything of convergence."""
        return self.guarantee != About.guarantee or self.coverage is not None
