"""What `dlplacer.planning.hybrid` exports."""

import importlib
import pkgutil

import pytest

from dlplacer.planning import hybrid as scaling


def test_every_export_is_there_and_no_module_hides_one() -> None:
    modules = {module.name for module in pkgutil.iter_modules(scaling.__path__)}
    assert not modules & set(scaling.__all__)
    for name in modules:
        importlib.import_module(f"dlplacer.planning.hybrid.{name}")
    for name in scaling.__all__:
        assert callable(getattr(scaling, name))
    assert dir(scaling) == scaling.__all__ == sorted(scaling.__all__)
    with pytest.raises(AttributeError, match="attribute nothing"):
        scaling.nothing  # noqa: B018
