"""One browser for all pages."""

from collections.abc import Iterator

import pytest
from report.page.browser import Browser, browser


@pytest.fixture(scope="package")
def session() -> Iterator[Browser]:
    """A session of headless Chromium; its tests are of one group, so that one worker has them."""
    with browser() as opened:
        yield opened
