"""What every test runs under: no GPU, quiet TensorFlow, deterministic hypothesis. Set before TensorFlow is imported."""

import os
import shutil

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
# As on the reference device: its graphs and its allocator, which keeps statistics.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"

import pytest
from hypothesis import settings

settings.register_profile("memviz", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("memviz")

NO_CHROMIUM = "Chromium is not installed, so the browser tests do not run (Debian: apt-get install chromium)"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and shutil.which("chromium") is None:
        if os.environ.get("MEMVIZ_REQUIRE_BROWSER"):
            pytest.fail(f"MEMVIZ_REQUIRE_BROWSER is set, but: {NO_CHROMIUM}", pytrace=False)
        pytest.skip(NO_CHROMIUM)
