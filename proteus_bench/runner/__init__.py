"""Planning, running and summarising a run."""
