"""Where commands of an agent run: a folder they may write, nothing else, and no network."""
