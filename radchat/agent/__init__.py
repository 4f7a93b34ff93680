"""An agent: a model that calls tools in this folder, step by step, under the user's permission."""
