"""Starts Debian's PostgreSQL 15 for the tests: a cluster of their own, a database per test.

As root the server runs as the user ``postgres``, because it refuses to run as root. It listens on
a unix socket only, and fsync stays on: durability is what some of the tests are about.
"""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from bcd.store.open import open_database

BIN = Path("/usr/lib/postgresql/15/bin")
_TEMPLATE = "bcd_template"
_GATEWAY = "gateway_of_tests"
_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
# Without foreign keys the order does not matter; the clock may have been taken over by a test.
_EMPTY = """
SET LOCAL session_replication_role = replica;
SET LOCAL lock_timeout = '2s';
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT tablename FROM pg_tables
    WHERE schemaname = 'public' AND tablename NOT IN ('schema_version', 'control')
  LOOP EXECUTE 'DELETE FROM ' || quote_ident(name); END LOOP;
END $$;
UPDATE control SET value = CASE key WHEN 'epoch' THEN 1 ELSE 0 END;
CREATE OR REPLACE FUNCTION compute_now() RETURNS bigint LANGUAGE sql VOLATILE AS
  $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
"""
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "deadlock_timeout": "200ms",
    "shared_buffers": "64MB",
    "log_min_messages": "fatal",
    "timezone": "UTC",
}


class Cluster:
    """A server with a migrated template; a context manager, so that it goes with the session."""

    def __init__(self) -> None:
        if not (BIN / "initdb").exists():
            raise RuntimeError(
                f"PostgreSQL is not installed ({BIN} is missing): "
                "run apt-get install -y postgresql-15"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="bcd-pg-"))
        self._data = self.folder / "data"
        self._account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        self._server: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._clean: list[str] = []

    def __enter__(self) -> Self:
        try:
            if self._account is not None:
                os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            self._run(
                BIN / "initdb", "--auth=trust", "--username=postgres", "--no-locale",
                "--encoding=UTF8", "--no-instructions", "-D", self._data,
            )  # fmt: skip
            self.start()
            self._execute(f"CREATE DATABASE {_TEMPLATE}")
            self._migrate_template()
            self._execute(f"CREATE ROLE {_GATEWAY} LOGIN IN ROLE bcd_gateway")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def pid(self) -> int:
        """The process of which all others of the server are children."""
        return int((self.folder / "data/postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Start the server, also after ``kill``, and wait until it takes connections."""
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        self._server = subprocess.Popen(
            self._as_server(BIN / "postgres", "-D", self._data, "-k", self.folder, *settings),
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            cwd=self.folder,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text()
                    raise RuntimeError(f"PostgreSQL did not start: {log}") from None
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """End the server as a crash would: SIGQUIT, no checkpoint, no waiting for sessions."""
        assert self._server is not None
        self._run(BIN / "pg_ctl", "stop", "-m", "immediate", "-D", self._data)
        self._server.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server and all its processes stand still."""
        main = self.pid
        processes = [
            main,
            *map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split()),
        ]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in reversed(processes):
                os.kill(process, signal.SIGCONT)

    def url(self, database: str, user: str = "postgres") -> str:
        """The URL by which ``user`` reaches a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """A migrated database without rows that nobody else uses; returns its URL."""
        if self._clean:
            return self._clean.pop()
        self._made += 1
        name = f"bcd_{self._made}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        return self.url(name)

    def give_back(self, url: str) -> None:
        """Empty a database for the next test, which is much faster than making one.

        One that somebody still has open, or that does not let itself be emptied, is left alone.
        """
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                for _ in range(20):  # the server notices a closed connection a little later
                    if connection.execute(_OTHERS).fetchone() == (0,):
                        connection.execute(_EMPTY)
                        self._clean.append(url)
                        return
                    time.sleep(0.01)
        except psycopg.Error:
            return

    def gateway_url(self, url: str) -> str:
        """The URL by which a gateway, under its own restricted role, reaches a database."""
        return url.replace("postgresql://postgres@", f"postgresql://{_GATEWAY}@")

    def empty_database(self) -> str:
        """A database without a schema; returns its URL."""
        self._made += 1
        name = f"bcd_{self._made}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def _migrate_template(self) -> None:
        asyncio.run(open_database(self.url(_TEMPLATE)).close())

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _as_server(self, *command: str | Path) -> list[str]:
        words = [str(word) for word in command]
        if self._account is None:
            return words
        identity = [
            f"--reuid={self._account.pw_uid}",
            f"--regid={self._account.pw_gid}",
            "--clear-groups",
        ]
        return ["setpriv", *identity, "--pdeathsig=QUIT", *words]

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            self._as_server(*command), capture_output=True, text=True, cwd=self.folder, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def _remove(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
