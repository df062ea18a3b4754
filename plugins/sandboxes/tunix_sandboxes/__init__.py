"""The kinds of sandbox that come with Tunix Core."""
