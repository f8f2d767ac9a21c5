"""How the workers of the reliable path learn where worker 0 listens."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from datetime import timedelta
from typing import Any, Protocol

from .errors import PeerLost
from .where import Rank

_KEY = "dogwild/coordinator"


class Meeting(Protocol):
    """A way in which worker 0 tells the others its address."""

    @property
    def listen(self) -> str:
        """IP:PORT for worker 0 to listen on."""

    def tell(self, port: int) -> str:
        """Worker 0 listens on ``port``: tells all others. Returns its address, by which worker 0
        goes too: others then learn an address of its server that leads to this host."""

    def ask(self, timeout: float) -> str:
        """The address of worker 0. Raises :class:`~dogwild.errors.PeerLost` after ``timeout`` s."""


class _Given:
    """The user has said it."""

    def __init__(self, address: str) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"address={address!r}: give HOST:PORT, as 10.0.0.1:7700")
        self._address, self._port = address, port

    @property
    def listen(self) -> str:
        return f"0.0.0.0:{self._port}"

    def tell(self, port: int) -> str:
        return self._address

    def ask(self, timeout: float) -> str:
        return self._address


class _Alone:
    """There are no others."""

    listen = "127.0.0.1:0"

    def tell(self, port: int) -> str:
        return f"127.0.0.1:{port}"

    def ask(self, timeout: float) -> str:
        raise AssertionError("worker 0 does not ask")


class _Distributed:
    """torch.distributed is initialised: all workers call this together."""

    listen = "0.0.0.0:0"

    def tell(self, port: int) -> str:
        address = f"{_own_ip()}:{port}"
        self._broadcast([address])
        return address

    def ask(self, timeout: float) -> str:
        told: list[Any] = [None]
        self._broadcast(told)
        return str(told[0])

    def _broadcast(self, told: list[Any]) -> None:
        import torch.distributed

        torch.distributed.broadcast_object_list(told, src=0)  # type: ignore[no-untyped-call]


class _Store:
    """The store of torchrun's agent."""

    listen = "0.0.0.0:0"

    def __init__(self) -> None:
        self._host, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # A run that torchrun starts again must not find the address of the one before.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._key = f"{_KEY}/{restart}"

    def tell(self, port: int) -> str:
        address = f"{_own_ip(self._host)}:{port}"
        self._store(60.0).set(self._key, address)
        return address

    def ask(self, timeout: float) -> str:
        try:
            return bytes(self._store(timeout).get(self._key)).decode()
        except (RuntimeError, ValueError) as error:
            raise PeerLost(
                f"worker 0 did not say where it listens, in the store of torchrun at "
                f"{self._host}:{self._port}, within {timeout:g} s: {error}"
            ) from error

    def _store(self, timeout: float) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(
            self._host, self._port, is_master=False, timeout=timedelta(seconds=timeout)
        )


def _own_ip(towards: str = "192.0.2.1") -> str:
    """The address of this host at which others reach it: that of the interface that Gloo is told to
    use, else that of the way to ``towards``, else that of the first interface with one."""
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if named and (address := _ip_of(probe, named)):
            return address
        try:
            # Nothing is sent: it chooses the route.
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
        except OSError:
            pass
        found = (_ip_of(probe, name) for _, name in socket.if_nameindex())
        return next((address for address in found if address and address[:4] != "127."), "127.0.0.1")


def _ip_of(probe: socket.socket, interface: str) -> str | None:
    """Its IPv4 address (netdevice(7), SIOCGIFADDR)."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), 0x8915, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def _is_distributed(workers: int) -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() == workers


def meeting_of(where: Rank, address: str | None) -> Meeting:
    """The way for this job. Raises ``ValueError`` if there is none."""
    if address is not None:
        return _Given(address)
    if where.workers == 1:
        return _Alone()
    if _is_distributed(where.workers):
        return _Distributed()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "MASTER_PORT" in os.environ:
        return _Store()
    raise ValueError(
        f"{where.workers} workers ({where.source}), and no address: give address=HOST:PORT, "
        "where worker 0 is to listen, the same on all workers"
    )
