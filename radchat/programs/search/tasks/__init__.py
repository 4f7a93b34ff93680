"""The tasks that come with radchat."""
