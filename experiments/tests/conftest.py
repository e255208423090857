"""The tests of all folders can import the helpers here, and each other."""

import sys
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).parent.rglob("*/") if folder.name != "__pycache__"]
