"""The fixed texts that whole models are compared on."""

from __future__ import annotations

CONTINUED = 64  # tokens of each greedy continuation
TEXTS = (
    "The lighthouse keeper climbed the stairs every evening at dusk, lit the lamp, and wrote the weather in a book "
    "that nobody had asked him to keep.",
    "A prime number has exactly two divisors. The first ones are 2, 3, 5, 7, 11 and 13; there is no last one, since "
    "the product of all of them, plus one, would have a prime divisor that is none of them.",
    'def area(radius: float) -> float:\n    """The area of a circle."""\n    return 3.14159 * radius ** 2\n',
    "Water boils at 100 degrees Celsius at sea level, and at about 93 degrees in a town 2,000 metres above it, "
    "because the air presses less on its surface.",
)
PROMPTS = (
    "Once upon a time, in a small village by the sea,",
    "The capital of France is",
    "The three laws of motion say that",
    "def fibonacci(n):\n",
    "To make a cup of tea, first",
    "In 1969, people walked on",
    "<|im_start|>user\nWhat is 7 times 8?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
)
