"""Any problem: thoughts are lines of text, ratings 1 to 9."""

from __future__ import annotations

from radchat.programs.search.task import Task

FREE = Task("free")
