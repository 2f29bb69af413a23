"""Python's garbage collection while a problem is solved."""

import gc
from collections.abc import Iterator

import pytest

from dlplacer.planning.garbage import fewer_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_collections_are_fewer_inside_and_as_before_afterwards() -> None:
    gc.set_threshold(700, 10, 10)
    with fewer_collections():
        assert all(raised > 10 for raised in gc.get_threshold())
        assert gc.get_threshold()[0] > 700
        assert gc.isenabled()
    assert gc.get_threshold() == (700, 10, 10)


def test_they_stay_few_until_the_last_is_done_whatever_ends_first() -> None:
    gc.set_threshold(700, 10, 10)
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    raised = gc.get_threshold()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == raised
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_an_error_leaves_them_as_before() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="wrong"), fewer_collections():
        raise ValueError("wrong")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (10**7, 1000, 1000)])
def test_what_is_rarer_stays_so(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with fewer_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own
