"""Small policies for Tunix Core, weights included."""
