"""A function becomes a tool: schema, parsing, calling.

Does not know environments or conversations.
"""
