"""The folder an agent works in: its paths, what is kept of its files, and the way back."""
