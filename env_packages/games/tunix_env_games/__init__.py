"""Text games over Gymnasium: `games/frozen-lake`, and `gym/NAME` for any registered environment."""
