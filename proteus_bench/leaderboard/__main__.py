"""`python -m proteus_bench.leaderboard FOLDER`: write the JSON Schemas of all files into a folder (`schemas`)."""

import sys
from pathlib import Path

from proteus_bench.leaderboard.board_schema import schema_texts
from proteus_bench.store import write_bytes

for name, text in schema_texts().items():
    write_bytes(Path(sys.argv[1]) / name, text.encode("utf-8"))
