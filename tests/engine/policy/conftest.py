"""The tests of policy share one world, block_life.py beside this file; it is run by hand as a script, too."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
