"""`games/frozen-lake`: Gymnasium's FrozenLake on random maps, played in words.

The policy sees the whole lake, P for itself, and answers up, down, left or right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import gymnasium
import numpy as np

from tunix_core import StepResult, Task
from tunix_core.envs import BaseTaskEnv
from tunix_core.envs.gymnasium import last_action

Split = Literal["train", "eval"]
ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}  # Gymnasium's numbers
MOVES = {"down": (1, 0), "right": (0, 1), "up": (-1, 0), "left": (0, -1)}
EXPECTED = "Answer up, down, left or right."
GREETING = "Lake: reach G, avoid O. " + EXPECTED
_WORDS = {**ACTIONS, **{word[0]: number for word, number in ACTIONS.items()}}
_EVAL_SHARE = 5  # one map in so many is held out
_EVAL_LAKES = 400
_EVAL_DRAWS = 3_000
_MAX_DRAWS = 2_000


class FrozenLake(BaseTaskEnv):
    """One lake. Reward 1 for reaching the goal; a hole ends the episode with 0.

    Args:
        task: its payload's "map" is the rows: S start, F ice, H hole, G goal.
        slippery: whether a step may slide to either side; by chance that the seed decides.
        max_steps: turns.

    Attributes:
        rows: the map.
        position: the player's cell, row * columns + column.
    """

    def __init__(
        self,
        task: Task | Mapping[str, Any] | None = None,
        *,
        slippery: bool = False,
        max_steps: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, max_steps=max_steps, **kwargs)
        self.rows: list[str] = list(self.task["map"])
        self.position = 0
        self._slippery = slippery
        self._env: gymnasium.Env[Any, Any] | None = None

    def _initial_observation(self) -> str:
        self._close()
        self._env = gymnasium.make(
            "FrozenLake-v1",
            desc=self.rows,
            is_slippery=self._slippery,
            max_episode_steps=-1,  # turns are counted here
            disable_env_checker=True,
        )
        self.position = int(self._env.reset(seed=self.seed)[0])
        return f"{GREETING}\n{draw(self.rows, self.position)}"

    def _step_impl(self, action: str) -> StepResult:
        assert self._env, "step comes after reset"
        direction = last_action(action, _WORDS)
        if direction is None:
            return StepResult(f"{EXPECTED}\n{draw(self.rows, self.position)}", info={"invalid_action": True})
        state, reward, terminated, truncated, _ = self._env.step(direction)
        self.position = int(state)
        info = {"outcome": "goal" if reward else "hole"} if terminated else {}
        return StepResult(draw(self.rows, self.position), float(reward), terminated, truncated, info)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


class FrozenLakeTasks:
    """An endless source of solvable lakes of one split, drawn independently, so that some come again."""

    def __init__(self, split: Split, seed: int, size: int, holes: float) -> None:
        self._split: Split = split
        self._seed, self._size, self._holes = seed, size, holes

    def get(self, index: int) -> Task:
        """Lake `index`: a function of split, seed and index. `difficulty` counts its holes."""
        rng = np.random.default_rng([self._seed, index, self._split == "eval"])
        for _ in range(_MAX_DRAWS):
            rows = draw_map(rng, self._size, self._holes)
            if split_of(rows) == self._split and find_path(rows) is not None:
                holes = sum(row.count("H") for row in rows)
                return Task(f"{self._split}-{self._seed}-{index}", {"map": rows}, self._split, float(holes))
        raise ValueError(
            f"no lake of size={self._size} with holes={self._holes} that can be crossed was found for split "
            f"{self._split!r}; take another size or share of holes"
        )


class HeldOutLakes:
    """Lakes of the eval split, no two alike: 400 of them, or fewer where so many are not found."""

    def __init__(self, seed: int, size: int, holes: float) -> None:
        drawn = FrozenLakeTasks("eval", seed, size, holes)
        lakes: dict[str, Task] = {}
        for index in range(_EVAL_DRAWS):
            task = drawn.get(index)
            lakes.setdefault("".join(task.payload["map"]), task)
            if len(lakes) == _EVAL_LAKES:
                break
        self._lakes = tuple(lakes.values())

    def __len__(self) -> int:
        return len(self._lakes)

    def get(self, index: int) -> Task:
        return self._lakes[index]


def make_tasks(
    split: Split, seed: int, *, size: int = 4, holes: float = 0.2, slippery: bool = False
) -> FrozenLakeTasks | HeldOutLakes:
    """Lakes of one split; train and eval share none. `slippery` is the environment's alone.

    Raises:
        ValueError: a size below 2, or a share of holes outside [0, 0.5].
    """
    if size < 2 or not 0 <= holes <= 0.5:
        raise ValueError(f"size must be at least 2 and holes in [0, 0.5]; got size={size}, holes={holes}")
    return HeldOutLakes(seed, size, holes) if split == "eval" else FrozenLakeTasks("train", seed, size, holes)


def draw_map(rng: np.random.Generator, size: int, holes: float) -> list[str]:
    """Random rows, start in the first corner and goal in the last; perhaps with no way between."""
    cells = np.where(rng.random((size, size)) < holes, "H", "F")
    cells[0, 0], cells[-1, -1] = "S", "G"
    return ["".join(row) for row in cells]


def split_of(rows: Sequence[str]) -> Split:
    """The split a map belongs to, for ever: a hash of the map decides."""
    digest = blake2b("\n".join(rows).encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") % _EVAL_SHARE == 0 else "train"


def draw(rows: Sequence[str], position: int) -> str:
    """The lake as the policy sees it: P player, . ice, O hole, G goal."""
    row, column = divmod(position, len(rows[0]))
    cells = [list(line.translate(str.maketrans("SFH", "..O"))) for line in rows]
    cells[row][column] = "P"
    return "\n".join(" ".join(line) for line in cells)


def shortest_path(rows: Sequence[str], position: int = 0) -> list[str]:
    """Words that lead from a cell to the goal over ice, as few as can be; [] at the goal.

    Of paths equally short it takes the one that is first in the order down, right, up, left.

    Args:
        rows: the map: S start, F ice, H hole, G goal.
        position: row * columns + column.

    Raises:
        ValueError: when there is no way.
    """
    path = find_path(rows, position)
    if path is None:
        raise ValueError(f"no way from cell {position} to the goal in {list(rows)}")
    return path


def find_path(rows: Sequence[str], position: int = 0) -> list[str] | None:
    """Like `shortest_path`; None when there is no way."""
    start = divmod(position, len(rows[0]))
    paths: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        row, column = here = queue.popleft()
        if rows[row][column] == "G":
            return paths[here]
        for word, (down, right) in MOVES.items():
            there = (row + down, column + right)
            if there not in paths and _walkable(rows, *there):
                paths[there] = [*paths[here], word]
                queue.append(there)
    return None


def _walkable(rows: Sequence[str], row: int, column: int) -> bool:
    return 0 <= row < len(rows) and 0 <= column < len(rows[0]) and rows[row][column] != "H"
