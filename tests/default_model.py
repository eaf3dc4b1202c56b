"""The default model's file for tests that need the real thing: downloaded once, then kept between runs. Not a test."""
import os
from pathlib import Path

import platformdirs

from hamdam.server.operations.pull import pull
from hamdam.server.operations.sources import DEFAULT_MODEL


def default_model_path() -> Path:
    """HAMDAM_TEST_MODELS says where the file is kept; by default with the user's other caches."""
    kept = os.environ.get("HAMDAM_TEST_MODELS")
    folder = Path(kept) if kept else platformdirs.user_cache_path("hamdam-tests")
    return pull(DEFAULT_MODEL.source, folder, lambda done, total, label: None)
