"""Tools of other programs: MCP servers, spoken to over their stdin and stdout (extra ``mcp``)."""
