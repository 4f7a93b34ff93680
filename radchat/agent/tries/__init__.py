"""Several tries at one task, each in a copy of the folder, from one shared prefix (ADR 0032)."""
