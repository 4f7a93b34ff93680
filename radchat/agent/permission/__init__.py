"""Who may do what: modes, rules, command lines taken apart, and what was granted before."""
