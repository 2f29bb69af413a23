"""The variants of a placed module: which one a call needs, and making those that are missing."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.runtime.placed.number_inputs import NumberTemplate, generalized, is_number, template_of
from dlplacer.runtime.placed.step_key import key_without_numbers, step_key
from dlplacer.runtime.placed.variant import Variant
from dlplacer.runtime.placed.variant_cache import VariantCache

Key = tuple[int, Hashable]
"""The edition of the module, and what decides the graph of a call."""


@dataclass(frozen=True)
class _Latest:
    """The last capture among those that differ in Python numbers alone."""

    captured: Captured
    leaves: Sequence[Any]
    template: NumberTemplate
    variant: Variant


class Variants:
    """Finds the variant for the inputs of a call, or makes it.

    Parameters
    ----------
    capture
        Captures a step at the inputs of a job.
    build
        Makes a variant of a capture.
    """

    def __init__(self, capture: Callable[[Job], Captured], build: Callable[[Job, Captured], Variant]) -> None:
        self._capture, self._build = capture, build
        self._found: VariantCache[Key, Variant] = VariantCache()
        self._latest: VariantCache[Key, _Latest] = VariantCache()

    def __len__(self) -> int:
        return len(self._found)

    def values(self) -> list[Variant]:
        """The variants, the one used longest ago first."""
        return self._found.values()

    def add(self, edition: int, job: Job, variant: Variant) -> None:
        """Use a variant for the inputs of a job."""
        leaves = _leaves(job)
        template = template_of(leaves, variant.captured)
        self._found.put((edition, step_key(job)), variant)
        self._latest.put((edition, key_without_numbers(job)), _Latest(variant.captured, leaves, template, variant))

    def known(self, edition: int, job: Job) -> Variant | None:
        """The variant for the inputs of a job, in an edition of its module, if there is one."""
        found = self._found.used((edition, step_key(job)))
        if found is None:
            latest = self._latest.used((edition, key_without_numbers(job)))
            if latest is not None and latest.template.free and latest.template.fits(_leaves(job)):
                return latest.variant
        return found

    def find(self, edition: int, job: Job) -> Variant:
        """As `known`; made if there is none."""
        return self.known(edition, job) or self._found.get((edition, step_key(job)), lambda: self._made(edition, job))

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Drop the variants of other editions."""
        self._found.drop(lambda key: not wanted(key[0]))
        self._latest.drop(lambda key: not wanted(key[0]))

    def _made(self, edition: int, job: Job) -> Variant:
        captured, leaves = self._capture(job), _leaves(job)
        like = edition, key_without_numbers(job)
        latest = self._latest.used(like)
        if latest is not None:
            captured = generalized(job, captured, leaves, latest.captured, latest.leaves) or captured
        variant = self._build(job, captured)
        self._latest.put(like, _Latest(captured, leaves, template_of(leaves, captured), variant))
        return variant


def _leaves(job: Job) -> list[Any]:
    """The numbers among the flat inputs, in their places; no tensor is kept alive."""
    leaves = flat_inputs(job)
    return [leaf if is_number(leaf) else None for leaf in leaves]
