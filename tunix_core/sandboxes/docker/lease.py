"""Keeps containers running as long as this process does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

LEASE_S = 45  # a container ends itself when it hears nothing for so long
BEAT_S = 10.0
# Without a network the engine names nothing: what runs inside still has to find itself.
NAME_ITSELF = r"""[ -s /etc/hosts ] ||
printf '127.0.0.1\tlocalhost %s\n::1\tlocalhost\n' "$(cat /proc/sys/kernel/hostname)" >/etc/hosts"""
# A container's first process. It is root's, so that nothing in there can keep it alive or silence it, and
# needs a `read` with a timeout: bash's, or that of busybox. It ends at once when its input ends.
FIRST_PROCESS = f"""{{ {NAME_ITSELF}; }} 2>/dev/null
t='while read -r -t "$0" _; do :; done'
if [ -x /bin/bash ]; then exec /bin/bash --norc -c "$t" "$0"; fi; exec /bin/sh -c "$t" "$0" """


class Lease:
    """One container's: its input, on which it hears that its owner lives. When the owner dies, it ends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self.kept = True

    def beat(self) -> None:
        try:
            self._socket.send(b"\n")
        except BlockingIOError:  # it has not read for very long; what it has to read will do
            pass
        except OSError:
            self.kept = False

    def end(self) -> None:
        self.kept = False
        with suppress(OSError):
            self._socket.close()


class Heart:
    """Beats for every lease, in a thread: an event loop that is held up for a while must not end episodes."""

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunix-sandbox-leases", daemon=True)
        self._thread.start()

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases.add(lease)

    def remove(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)
        lease.end()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            with self._lock:
                leases = tuple(self._leases)
            for lease in leases:
                lease.beat()
