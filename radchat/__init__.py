"""radchat: a terminal chat and agent CLI that keeps its thinking."""

__version__ = "0.1.0"
