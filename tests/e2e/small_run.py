"""A config small enough for whole runs in tests."""

from pathlib import Path

TROUBLE = Path(__file__).parent / "trouble.py"
SMALL = """
model = "models/nano"
model_options = {{ random = 1 }}
steps = {steps}
run_dir = "{run_dir}"
trackers = ["trouble/rows"]

[trainer]
groups_per_step = 4
rows = 2
row_tokens = 128

[engine]
slots = 8
max_context = 128
prefill_chunk = 16
decode_steps = 2
"""
SUITE = """
[[suite]]
env = "trouble/env"
group_size = 4
sampling = {{ max_tokens = 6 }}
options = {{ {options} }}
"""
