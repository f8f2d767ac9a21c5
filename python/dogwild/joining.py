"""How a worker comes into a cluster of the reliable path, and how it leaves."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ._native import Hosted, Worker, servers_of, session_number
from .errors import DogwildError, PeerLost
from .meeting import meeting_of
from .where import Rank

_LOOK_S = 0.005


@dataclass
class Job:
    """What all workers of a job have alike, and where it is."""

    name: str | None
    #: The model file, as JSON.
    model: str
    policy: str
    #: ``None``: as many as have something to hold.
    servers: int | None
    address: str | None
    key_file: str | os.PathLike[str] | None
    timeout: float

    @property
    def session(self) -> int:
        """Number of the job."""
        return session_number(self.name or "dogwild")

    @property
    def key(self) -> str | None:
        """Path of the key file."""
        return None if self.key_file is None else os.fspath(self.key_file)


@dataclass
class Joined:
    """A worker that has joined, and the members that its process hosts."""

    worker: Worker
    where: Rank
    hosted: list[Hosted] = field(default_factory=list)

    def begin(self) -> None:
        """Begins an iteration. Raises :class:`~dogwild.errors.PeerLost` if the run is over."""
        if not self.worker.begin():
            raise PeerLost(
                "another worker has ended the run: call backward() equally often on all workers"
            )

    def close(self) -> None:
        """Ends the run for all workers, in order."""
        try:
            self.worker.close()
            for member in self.hosted:
                member.join()
        except BaseException:
            self._stop()
            raise

    def abort(self, why: str) -> None:
        """Ends the run for all workers at once, which get ``why``."""
        self.worker.abort(f"worker {self.where.rank}: {why}")
        self._stop()

    def _stop(self) -> None:
        for member in self.hosted:
            member.stop()


def alone_error() -> PeerLost:
    """Another worker has ended the run, in order."""
    return PeerLost(
        "another worker has ended the run before this iteration, which is without its "
        "part: call backward() equally often on all workers"
    )


def join(job: Job, where: Rank, weights: int) -> Joined:
    """Joins, and hosts on worker 0 the coordinator, and on each of the first workers a server.

    ``weights``: a hash of what the optimiser begins with. Raises
    :class:`~dogwild.errors.PeerLost` if others do not come in time.
    """
    servers = job.servers
    if servers is None:
        servers = servers_of(job.model, where.workers, job.policy)
    if not 0 <= servers <= where.workers:
        raise ValueError(f"servers={servers}: give 0 to {where.workers}, as many as workers")
    until = time.monotonic() + job.timeout
    hosted: list[Hosted] = []
    try:
        at = _meet(job, servers, where, until, hosted)
        if where.rank < servers:
            hosted.append(Hosted.server(where.rank, at, job.session, job.model, job.key))
        left = max(0.0, until - time.monotonic())
        worker = Worker.join(where.rank, at, job.session, weights, left, job.key)
        if worker is None:
            raise PeerLost(
                f"not all of the {where.workers} workers came to {at} within {job.timeout:g} s: "
                "start them with the same address, name and number of workers"
            )
    except BaseException:
        for member in hosted:
            member.stop()
        raise
    return Joined(worker, where, hosted)


def _meet(job: Job, servers: int, where: Rank, until: float, hosted: list[Hosted]) -> str:
    """Starts the coordinator on worker 0. Returns its address, as others reach it."""
    meeting = meeting_of(where, job.address)
    if where.rank != 0:
        return meeting.ask(max(1.0, until - time.monotonic()))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "address"
        coordinator = Hosted.coordinator(
            meeting.listen,
            job.session,
            job.model,
            where.workers,
            servers,
            job.policy,
            str(file),
            job.key,
        )
        hosted.append(coordinator)
        while not file.exists():
            if coordinator.ended:
                coordinator.join()
                raise DogwildError("the coordinator ended before it listened")
            time.sleep(_LOOK_S)
        port = int(file.read_text().rpartition(":")[2])
    return meeting.tell(port)
