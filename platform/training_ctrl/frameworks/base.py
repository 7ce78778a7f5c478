"""What a framework defines."""

from typing import Generic

from ...model.training.framework_api import FrameworkApi
from ...model.training.types import S


class Framework(FrameworkApi[S], Generic[S]):
    """One framework: the API of its kind, and how its pods find each other."""
