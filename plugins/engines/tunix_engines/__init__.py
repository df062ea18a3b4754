"""The built-in inference engine of Tunix Core, by name."""
