"""An agent at a terminal: what it does is shown, and what it may do is asked."""
