"""Which node this process is on: arguments, else what a launcher has put into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """A process of a job: its node, the number of nodes, its place among those of its node."""

    node: int
    nodes: int
    index: int
    #: Who said so, for messages.
    source: str
    #: The launcher's number of the job; none if there is no launcher.
    job: str | None = None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name}={environ[name]!r} in the environment: not a number") from None


def _launcher(environ: Mapping[str, str]) -> Where:
    def number(name: str) -> int:
        return _number(environ, name)

    if {"GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK"} <= environ.keys():
        return Where(
            number("GROUP_RANK"),
            number("GROUP_WORLD_SIZE"),
            number("LOCAL_RANK"),
            "torchrun",
            f"{environ.get('TORCHELASTIC_RUN_ID', 'none')}-{environ.get('MASTER_PORT', '')}",
        )
    if {"SLURM_NODEID", "SLURM_NNODES", "SLURM_LOCALID"} <= environ.keys():
        return Where(
            number("SLURM_NODEID"),
            number("SLURM_NNODES"),
            number("SLURM_LOCALID"),
            "Slurm",
            environ.get("SLURM_JOB_ID"),
        )
    if {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= environ.keys():
        local = "OMPI_COMM_WORLD_LOCAL_SIZE"
        size = number(local) if local in environ else 1
        rank = number("OMPI_COMM_WORLD_RANK")
        return Where(
            # Ranks by node, as mpirun gives them where all hosts have as many.
            rank // size,
            -(-number("OMPI_COMM_WORLD_SIZE") // size),
            rank % size,
            "Open MPI",
            environ.get("OMPI_MCA_ess_base_jobid"),
        )
    return Where(0, 1, 0, "no launcher")


def where_am_i(
    node: int | None = None,
    nodes: int | None = None,
    index: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Where:
    """Where this process is. Arguments win, each by itself, over the environment.

    Raises ``ValueError`` for numbers that do not fit together.
    """
    told = _launcher(os.environ if environ is None else environ)
    # A node without a number of nodes is one of those that the launcher has started.
    given = Where(
        told.node if node is None else node,
        told.nodes if nodes is None else nodes,
        told.index if index is None else index,
        told.source if node is None and nodes is None else "arguments",
        told.job,
    )
    if not 1 <= given.nodes <= 255:
        raise ValueError(f"nodes={given.nodes} ({given.source}): give 1 to 255")
    if not 0 <= given.node < 255:
        raise ValueError(f"node={given.node} ({given.source}): nodes count from 0")
    if given.nodes == 1 and given.node != 0:
        raise ValueError(
            f"node={given.node} of 1 node ({given.source}): give nodes=, the same on all nodes"
        )
    if not 0 <= given.index < 32:
        raise ValueError(f"index={given.index} ({given.source}): give 0 to 31")
    return given


@dataclass(frozen=True)
class Rank:
    """A worker of a job on the reliable path."""

    rank: int
    workers: int
    #: Who said so, for messages.
    source: str


def rank_of(
    rank: int | None = None,
    workers: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Rank:
    """Which worker this process is: arguments, torch.distributed, or the environment.

    Raises ``ValueError`` for numbers that do not fit together.
    """
    told = _rank_of_launcher(os.environ if environ is None else environ)
    source = told.source if rank is None and workers is None else "arguments"
    given = Rank(
        told.rank if rank is None else rank,
        told.workers if workers is None else workers,
        source,
    )
    if not 1 <= given.workers <= 255:
        raise ValueError(f"workers={given.workers} ({source}): give 1 to 255")
    if not 0 <= given.rank < given.workers:
        raise ValueError(
            f"rank={given.rank} of {given.workers} workers ({source}): ranks count from 0; "
            "give workers=, the same on all"
        )
    return given


def _rank_of_launcher(environ: Mapping[str, str]) -> Rank:
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        return Rank(torch.distributed.get_rank(), world, "torch.distributed")
    for rank, workers, source in (
        ("RANK", "WORLD_SIZE", "torchrun"),
        ("SLURM_PROCID", "SLURM_NTASKS", "Slurm"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ):
        if {rank, workers} <= environ.keys():
            return Rank(_number(environ, rank), _number(environ, workers), source)
    return Rank(0, 1, "no launcher")
