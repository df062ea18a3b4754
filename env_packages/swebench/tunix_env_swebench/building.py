"""Builds the image of a row: a base image, what it requires, and its repository at one commit. One layer, made in a
container without a network."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunix_env_swebench.repository import GIT_ENV, ONE_COMMIT, ROOT
from tunix_env_swebench.rows import Row
from tunix_env_swebench.sources import SourceError, fetch, fetch_wheels

LABEL = "tunix.swebench.instance"
BUILD_S = 1800
# An engine names nothing in a container without a network; tests of what is built may speak to localhost.
NAMES = r"[ -s /etc/hosts ] || printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >/etc/hosts"
WHEELS = "/tmp/tunix-wheels"
PYTHON_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
INSTALL = ("python3", "-m", "pip", "install", "--no-index", "--disable-pip-version-check", "--root-user-action=ignore")


class BuildError(Exception):
    """An image that could not be built: says which row, what was run, and how it ended."""


def is_built(client: Any, row: Row) -> bool:
    """Whether the engine of a docker client has the image of a row."""
    from docker.errors import ImageNotFound

    try:
        client.images.get(row.image_name)
    except ImageNotFound:
        return False
    return True


def build(client: Any, row: Row, base: str, folder: Path) -> str:
    """Builds the image of a row and gives its name.

    Args:
        client: a docker client.
        base: an image with python3, pip, git, bash and patch.
        folder: what relative paths of the row's source are relative to.

    Raises:
        SourceError: the repository or a package can't be had.
        BuildError: a step failed inside, or there is no such base image.
    """
    with tempfile.TemporaryDirectory(prefix="tunix-swebench-") as scratch, _Workshop(client, row, base) as workshop:
        tree = Path(scratch) / "testbed"
        fetch(row, folder, tree)
        workshop.run(["sh", "-c", NAMES])
        workshop.install(list(row.source.get("requires", ())), Path(scratch) / "wheels")
        workshop.put(tree, ROOT)
        for command in row.source.get("setup", ()):
            workshop.run(["bash", "-c", command], cwd=ROOT)
        workshop.run(["bash", "-c", ONE_COMMIT], cwd=ROOT)
        # as in the published images: whoever works there may write
        workshop.run(["chmod", "-R", "a+rwX", ROOT])
        return workshop.keep(row.image_name)


class _Workshop:
    """A container of the base image in which one image is made; removed at the end, whatever happened."""

    def __init__(self, client: Any, row: Row, base: str) -> None:
        self._client, self._row, self._base = client, row, base

    def __enter__(self) -> _Workshop:
        from docker.errors import ImageNotFound

        try:
            self._container = self._client.containers.create(
                self._base,
                ["sleep", str(BUILD_S)],
                network_mode="none",
                network_disabled=True,
                user="root",
                init=True,
                auto_remove=True,  # also when this process is killed: it ends by itself, and is gone
                labels={LABEL: self._row.instance_id},
            )
        except ImageNotFound as error:
            raise BuildError(f"there is no image {self._base!r} here. Pull it, or give another with --base") from error
        self._container.start()
        return self

    def __exit__(self, *_: object) -> None:
        from docker.errors import NotFound

        with suppress(NotFound):
            self._container.kill()
            self._container.wait(condition="removed")

    def run(self, command: Sequence[str], cwd: str = "/") -> str:
        code, output = self._try(command, cwd)
        if code:
            raise BuildError(
                f"{self._row.instance_id}: {' '.join(command):.100} ended with {code}: {output.strip()[-500:]}"
            )
        return output

    def install(self, requires: Sequence[str], wheels: Path) -> None:
        """Installs what the base image doesn't have yet."""
        if not requires or not self._try([*INSTALL, "--no-deps", "--dry-run", *requires], "/")[0]:
            return
        fetch_wheels(requires, self.run(["python3", "-c", PYTHON_VERSION]).strip(), wheels)
        self.put(wheels, WHEELS)
        self.run([*INSTALL, "--break-system-packages", "--find-links", WHEELS, *requires])
        self.run(["rm", "-rf", WHEELS])

    def put(self, folder: Path, path: str) -> None:
        self.run(["mkdir", "-p", path])
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(folder, arcname=".", filter=_as_root)
        if not self._container.put_archive(path, packed.getvalue()):
            raise BuildError(f"{self._row.instance_id}: {folder.name} could not be copied into the container")

    def keep(self, name: str) -> str:
        repository, _, tag = name.rpartition(":")
        settings = [f"WORKDIR {ROOT}", 'CMD ["bash"]', f"LABEL {LABEL}={self._row.instance_id}"]
        self._container.commit(repository=repository, tag=tag, changes=settings)
        return name

    def _try(self, command: Sequence[str], cwd: str) -> tuple[int, str]:
        done = self._container.exec_run(list(command), workdir=cwd, user="root", environment=GIT_ENV)
        return done.exit_code, done.output.decode(errors="replace")


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


__all__ = ["BuildError", "SourceError", "build", "is_built"]
