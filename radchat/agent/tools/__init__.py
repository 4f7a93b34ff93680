"""The tools an agent has. Each is one object; ``registry`` lists them."""
