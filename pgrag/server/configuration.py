"""The server's own configuration files, written anew at each start: settings, who may connect, and as whom."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from pgrag.errors import ServerError

PORT = 5432
ROLE = "pgrag"
DATABASE = "pgrag"
ADMINISTRATOR = "postgres"
# Relative to the home directory, from which the server is started: no path of the user's reaches pg_ctl's shell.
OPTIONS = "-c config_file=server.conf -c hba_file=pg_hba.conf -c ident_file=pg_ident.conf"

_SETTINGS = """\
# Written by pgrag at each start: changes here are lost. ALTER SYSTEM outranks this file and stays.
include 'data/postgresql.conf'
cluster_name = 'pgrag'
listen_addresses = ''
port = {port}
unix_socket_directories = {sockets}
unix_socket_permissions = 0700
max_connections = 100
# one application on one machine
shared_buffers = 256MB
work_mem = 16MB
maintenance_work_mem = 512MB
max_wal_size = 2GB
random_page_cost = 1.1
jit = off
dynamic_shared_memory_type = {shared_memory}
# durable
fsync = on
synchronous_commit = on
full_page_writes = on
# The log tells what happened to the server, never what users store: no statement, parameter, key or row.
logging_collector = off
log_destination = 'stderr'
log_min_messages = warning
log_error_verbosity = terse
log_statement = 'none'
log_min_duration_statement = -1
log_min_error_statement = panic
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
"""
_HBA = f"""\
# Written by pgrag at each start. Local socket only, and only who the kernel says it is.
local  all  {ROLE},{ADMINISTRATOR}  peer  map=pgrag
"""
_IDENT = """\
# Written by pgrag at each start: the one operating system account that may connect, and its roles.
pgrag  "{caller}"  {role}
pgrag  "{caller}"  {administrator}
"""


def write_configuration(home: Path, sockets: Path, caller: str, mode: int) -> None:
    """Write server.conf, pg_hba.conf and pg_ident.conf into `home` with permission `mode`, each in one step.

    `caller` is the account that may connect. Raises ServerError if its name cannot stand in pg_ident.conf.
    """
    if caller.startswith("/") or not caller.isprintable() or set(caller) & set('"\\#,'):
        raise ServerError(f"PostgreSQL cannot match an account named {caller!r}: use another account, or give a DSN")
    settings = _SETTINGS.format(port=PORT, sockets=quote(str(sockets)), shared_memory=shared_memory_type())
    ident = _IDENT.format(caller=caller, role=ROLE, administrator=ADMINISTRATOR)
    for name, text in (("server.conf", settings), ("pg_hba.conf", _HBA), ("pg_ident.conf", ident)):
        fresh = home / f"{name}.new"
        fresh.write_text(text, "utf-8")
        fresh.chmod(mode)
        fresh.replace(home / name)


def quote(value: str) -> str:
    """A value as postgresql.conf wants it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def shared_memory_type(mount: Path = Path("/dev/shm")) -> str:  # noqa: S108 - measured, not written to
    """`posix`, or `sysv` where /dev/shm is too small for a parallel index build (a container's has 64 MB)."""
    if not sys.platform.startswith("linux"):
        return "posix"
    enough = os.path.isdir(mount) and shutil.disk_usage(mount).total >= 1024**3  # noqa: PTH112 - pairs with disk_usage
    return "posix" if enough else "sysv"
