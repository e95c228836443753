"""What integration tests share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"integration_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def browse() -> Iterator[Any]:
    """What opens headless browsers, which are closed afterwards; takes the options of `browser.Browser`."""
    driver = _load("browser")
    if driver.CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    opened: list[Any] = []

    def open_one(**options: Any) -> Any:
        opened.append(driver.Browser(**options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
