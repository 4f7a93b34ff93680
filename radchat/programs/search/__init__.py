"""Tree of thought: a search whose steps are messages of a session.

After "Tree of Thoughts: Deliberate Problem Solving with Large Language Models" (Yao et al., 2023,
arXiv 2305.10601): thoughts are made, judged and chosen, by algorithms of a dozen lines.

Read in this order: settings (what it is told), tree (a thought), task (what the model is asked),
asks and prompting (how), methods (the algorithms), thinker, growing and judging (what they do with
thoughts), budget, journal (how a search is resumed), think (one run), listener (what it tells).
"""
