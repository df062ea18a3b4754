"""One run on several hosts: process 0 rolls out and decides; the others repeat its trainer's calls.

Every process runs the same command and builds the same trainer, whose mesh spans all of them. Process 0 alone has
an engine, environments and a run directory. Before each call of its trainer it sends the call to the others, over a
connection of their own; gradients and weights then go from device to device as the mesh says.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

from tunix_core.contracts import Weights
from tunix_core.errors import TunixError, UsageError
from tunix_core.types import Group

if TYPE_CHECKING:
    from tunix_core.trainer import Trainer, TrainerState

KEY_BYTES = 32
END = "end"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Which of a run's processes this is.

    Attributes:
        coordinator: HOST:PORT of process 0, where they find each other.
        processes: how many there are.
        process: this one's number, from 0.

    Raises:
        UsageError: a value that can't be.
    """

    coordinator: str
    processes: int
    process: int

    def __post_init__(self) -> None:
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"the coordinator is {self.coordinator!r}, expected HOST:PORT of process 0")
        if self.processes < 1:
            raise UsageError(f"{self.processes} processes were given, expected at least 1")
        if not 0 <= self.process < self.processes:
            raise UsageError(f"process {self.process} was given, expected 0 to {self.processes - 1}")


def hosts_of(coordinator: str | None, processes: int | None, process: int | None) -> Hosts | None:
    """From what the command line or the environment gave; None where nothing was.

    Raises:
        UsageError: some of the three are missing.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    if all(value is None for value in given.values()):
        return None
    if missing := [name for name, value in given.items() if value is None]:
        raise UsageError(f"several hosts need {', '.join(given)} together; {' and '.join(missing)} is missing")
    assert coordinator is not None and processes is not None and process is not None
    return Hosts(coordinator, processes, process)


def join(hosts: Hosts) -> None:
    """Waits for the other processes, and makes all their devices one machine of JAX's. Before JAX is used.

    Raises:
        UsageError: they can't be reached.
    """
    import jax

    try:
        jax.distributed.initialize(hosts.coordinator, hosts.processes, hosts.process)
    except RuntimeError as error:
        raise UsageError(f"process {hosts.process} can't join {hosts.coordinator}: {error}") from error


class LeadingTrainer:
    """The trainer of process 0 (contracts.Learner): the others make each of its calls too."""

    def __init__(self, trainer: Trainer, followers: list[Connection]) -> None:
        self._trainer, self._followers = trainer, followers

    @property
    def version(self) -> int:
        return self._trainer.version

    def accumulate(self, group: Group) -> None:
        self._tell("accumulate", group)
        self._trainer.accumulate(group)

    def apply(self) -> Mapping[str, float]:
        self._tell("apply")
        return self._trainer.apply()

    def weights(self) -> Weights:
        """The whole weights, on a device of this process."""
        self._tell("weights")
        version, params = self._trainer.weights()
        return Weights(version, _local(params))

    def state(self) -> TrainerState:
        """As the trainer's, on the host."""
        from tunix_core.trainer import TrainerState

        self._tell("state")
        state = self._trainer.state()
        return TrainerState(_on_host(state.params), _on_host(state.optimizer), state.version)

    def restore(self, state: TrainerState) -> None:
        self._tell("restore", state)
        self._trainer.restore(state)

    def warm_up(self) -> None:
        self._tell("warm_up")
        self._trainer.warm_up()

    def memory(self) -> dict[str, int]:
        return self._trainer.memory()

    def _tell(self, call: str, *arguments: Any) -> None:
        for follower in self._followers:
            follower.send((call, arguments))


@contextmanager
def leading(trainer: Trainer, hosts: Hosts) -> Iterator[LeadingTrainer]:
    """Process 0's trainer; at the end the others end too."""
    key = secrets.token_bytes(KEY_BYTES)
    with Listener((hosts.coordinator.rpartition(":")[0], 0), authkey=key) as listener:
        _shared(key, listener.address[1])
        followers = [listener.accept() for _ in range(hosts.processes - 1)]
    try:
        yield LeadingTrainer(trainer, followers)
        for follower in followers:
            follower.send((END, ()))
    finally:
        for follower in followers:
            follower.close()


def follow(trainer: Trainer, hosts: Hosts) -> None:
    """Makes every call that process 0 makes of its trainer, until that ends.

    Raises:
        TunixError: process 0 is gone.
        RunEnded: as the calls do, in every process.
    """
    key, port = _shared(bytes(KEY_BYTES), 0)
    with Client((hosts.coordinator.rpartition(":")[0], port), authkey=key) as leader:
        while True:
            try:
                call, arguments = leader.recv()
            except EOFError as error:
                raise TunixError("process 0 has ended before its time; what it says is the reason") from error
            if call == END:
                return
            getattr(trainer, call)(*arguments)


def _shared(key: bytes, port: int) -> tuple[bytes, int]:
    """Process 0's key and port, in every process."""
    import numpy as np
    from jax.experimental import multihost_utils

    sent = np.frombuffer(key + port.to_bytes(4, "little"), np.uint8).astype(np.int32)
    found = np.asarray(multihost_utils.broadcast_one_to_all(sent)).astype(np.uint8).tobytes()
    return found[:KEY_BYTES], int.from_bytes(found[KEY_BYTES:], "little")


def _local(tree: Any) -> Any:
    import jax

    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def _on_host(tree: Any) -> Any:
    import jax
    import numpy as np

    return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), tree)
