"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="session")
def browser():
    chromium = shutil.which("chromium")
    assert chromium is not None, "these tests need Chromium; install it: apt-get install chromium"
    # Chromium's own sandbox doesn't work for root, which containers run as.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()
