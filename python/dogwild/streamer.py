"""The streamer of a node, `dogwild stream`, as a process of this one."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from typing import IO

from .errors import StreamerFailed
from .program import program

log = logging.getLogger("dogwild.stream")

#: A streamer that was killed is started again so often.
RESTARTS = 20
#: Seconds between two looks whether another streamer has gone.
_LOOK_S = 0.05

_LEVELS = {
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_LINE = re.compile(r"^\[\S* ?(ERROR|WARN|INFO|DEBUG|TRACE) +[^\]]*\] ?(.*)$")

_all: weakref.WeakSet[Streamer] = weakref.WeakSet()


def level_and_text(line: str) -> tuple[int, str]:
    """What a line of a streamer's log says, and how bad that is."""
    found = _LINE.match(line)
    if found is None:
        return logging.WARNING, line
    return _LEVELS[found[1]], found[2]


class Streamer:
    """Runs ``dogwild stream`` until :meth:`close`, or until this process ends, however it does.

    A streamer that a signal ends is started again: it goes on where the last one stopped. Where
    another one is ``there`` already, this one begins when that has gone: it may be that of a
    process that was killed, and be about to end.
    """

    def __init__(self, arguments: list[str], there: Callable[[], bool]) -> None:
        self._command = [program(), "stream", "--until-eof", *arguments]
        self._there = there
        self._owner = os.getpid()
        self._closing = False
        self._restarts = 0
        self._last = ""
        self._error = ""
        self._failed: str | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, name="dogwild-log", daemon=True)
        if not there():
            self._process = self._start()
        self._thread.start()
        _all.add(self)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Ctrl-C goes to this process, which ends the streamer in order.
                process_group=0,
            )
        except OSError as error:
            raise StreamerFailed(f"cannot start {self._command[0]}: {error}") from error

    def _follow(self) -> None:
        """The thread that reads the log, and starts a killed streamer again."""
        while True:
            if self._process is None and not self._start_after_the_other():
                return
            assert self._process is not None
            errors: IO[bytes] | None = self._process.stderr
            assert errors is not None
            for raw in errors:
                level, text = level_and_text(raw.decode(errors="replace").rstrip())
                if level >= logging.ERROR or text.startswith("error:"):
                    self._error = text
                self._last = text or self._last
                log.log(level, "%s", text)
            code = self._process.wait()
            with self._lock:
                if self._closing:
                    return
                if code >= 0 or self._restarts >= RESTARTS:
                    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                    self._failed = f"the streamer ended ({how}): {self._error or self._last}"
                    log.error("%s", self._failed)
                    return
                self._restarts += 1
                log.warning("the streamer was ended by signal %d: starting it again", -code)
                _close(self._process.stdin)
                try:
                    self._process = self._start()
                except StreamerFailed as error:
                    self._failed = str(error)
                    return

    def _start_after_the_other(self) -> bool:
        """Waits until the streamer of another process has gone. False: this one is to end first."""
        log.info("this node has a streamer already: another one begins when that has ended")
        while self._there():
            if self._closing:
                return False
            time.sleep(_LOOK_S)
        with self._lock:
            if self._closing:
                return False
            try:
                self._process = self._start()
            except StreamerFailed as error:
                self._failed = str(error)
                return False
        return True

    @property
    def pid(self) -> int | None:
        """Process number of the streamer, once it runs."""
        return None if self._process is None else self._process.pid

    def check(self) -> None:
        """Raises :class:`StreamerFailed` if it has ended with an error."""
        if self._failed is not None:
            raise StreamerFailed(self._failed)

    def close(self, timeout: float = 60.0) -> None:
        """Ends it in order: it gives what it has to other nodes first.

        After ``timeout`` seconds it is asked again, which ends it at once; what it has not
        delivered then stays in its files.
        """
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closing = True
            process = self._process
        if process is None:
            self._thread.join(10)
            return
        _close(process.stdin)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            log.warning("the streamer has not delivered all in %g s: ending it", timeout)
            # The end of its input was the first request; a second one ends it at once.
            process.terminate()
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._thread.join(10)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except OSError:
            pass


def _in_child() -> None:
    # The streamer is to end with the process that started it, not with the last of its children.
    for streamer in _all:
        if streamer._process is not None:
            _close(streamer._process.stdin)


os.register_at_fork(after_in_child=_in_child)
