"""The error of a submission."""

from collections.abc import Sequence


class SubmitError(ValueError):
    """What is wrong with a script or with options: one sentence for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
