"""The tests of policy share policy_world.py beside this file; block_life.py is also run by hand, as a script."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
