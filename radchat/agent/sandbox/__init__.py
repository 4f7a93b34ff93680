"""Where commands of an agent run: a folder they may write, nothing else, and no network.

``choosing`` says which sandbox works here, ``runner`` starts ``enter.py`` in a process of its own;
what follows there (``landlock``, ``filter``, ``attributes``, ``processes``) is plain stdlib, and
quick. docs/adr/0029.
"""
