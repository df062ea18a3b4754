"""The only room that knows every room: builds and connects them.

Each entry imports what it needs inside the function, so that listing plugins never loads JAX.
"""
