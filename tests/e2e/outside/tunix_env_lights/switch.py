from tunix_core import StepResult, Task
from tunix_core.envs import BaseTaskEnv


class Switch(BaseTaskEnv):
    def __init__(self, task, *, lamps=3, **kwargs):
        super().__init__(task, **kwargs)
        self.lamps = lamps

    def _initial_observation(self):
        self.lit = [bool(lit) for lit in self.rng.integers(0, 2, self.lamps)]
        self.lit[self.task["dark"] % self.lamps] = False
        return f"Turn all on. Say a lamp's number. {self._row()}"

    def _step_impl(self, action):
        chosen = [number for number in range(1, self.lamps + 1) if str(number) in action]
        for number in chosen:
            self.lit[number - 1] = not self.lit[number - 1]
        if all(self.lit):
            return StepResult("All on.", reward=1.0, terminated=True)
        return StepResult(self._row() if chosen else f"Say 1 to {self.lamps}.")

    def _row(self):
        return " ".join("on" if lit else "off" for lit in self.lit)


class Rows:
    def __init__(self, split, seed):
        self.split, self.seed = split, seed

    def get(self, index):
        return Task(f"{self.split}-{self.seed}-{index}", {"dark": index}, self.split)


def make_tasks(split, seed):
    return Rows(split, seed)
