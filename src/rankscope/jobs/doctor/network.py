"""Host names and network interfaces through which ranks on several hosts connect.

In: this host's names and interfaces. Out: checks.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Collection, Iterator, Mapping

from rankscope.jobs.doctor.check import Check

_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def checks(environ: Mapping[str, str], interfaces: Collection[str] | None = None) -> Iterator[Check]:
    """Whether this host's name, the interfaces that variables name, and the rendezvous are valid.

    Args:
        environ: the environment.
        interfaces: names of this host's interfaces; detected by default.
    """
    yield _own_name(environ)
    there = _interfaces() if interfaces is None else interfaces
    for variable in _INTERFACES:
        value = environ.get(variable, "")
        if value and there:
            yield _named(variable, value, there)
    yield from _rendezvous(environ)


def _interfaces() -> list[str]:
    try:
        return [name for _, name in socket.if_nameindex()]
    except (AttributeError, OSError):
        return []


def _own_name(environ: Mapping[str, str]) -> Check:
    name = socket.gethostname()
    addresses = _addresses(name)
    fix = "name the interface: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME; or fix /etc/hosts"
    if not addresses:
        return Check("network", "host", "warn", f"{name}, this host's name, has no address: gloo cannot use it", fix)
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        what = f"{name} is {', '.join(addresses)}: ranks on other hosts cannot connect to it (on one host this is fine)"
        several = _several_hosts(environ)
        return Check("network", "host", "warn" if several else "ok", what, fix if several else "")
    return Check("network", "host", "ok", f"{name} is {', '.join(addresses)}")


def _several_hosts(environ: Mapping[str, str]) -> bool:
    """Whether this is a job that has, or may have, other hosts."""
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    return (nodes.isdigit() and int(nodes) > 1) or "PBS_NODEFILE" in environ


def _addresses(name: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None)))
    except (OSError, UnicodeError):
        return []


def _named(variable: str, value: str, there: Collection[str]) -> Check:
    excluding = value.startswith("^")
    names = [name.strip().lstrip("=") for name in value.removeprefix("^").split(",") if name.strip()]
    # NCCL takes the beginnings of names, the others whole ones.
    exact = variable != "NCCL_SOCKET_IFNAME" or value.removeprefix("^").startswith("=")
    fits = {
        name: [i for i in there if i == name or (not exact and i.startswith(name))] for name in names
    }  # the interfaces here that each name selects
    if excluding:
        left = [i for i in there if i != "lo" and not any(i in selected for selected in fits.values())]
        if left:
            return Check("network", variable, "ok", f"{variable}={value} leaves {', '.join(left)}")
        return Check("network", variable, "fail", f"{variable}={value} leaves no interface", f"unset {variable}")
    lacking = [name for name in names if not fits[name]]
    if lacking:
        what = f"{variable}={value}: this host has no {', '.join(lacking)}; it has {', '.join(sorted(there))}"
        return Check("network", variable, "fail", what, f"name one of these, or unset {variable}")
    return Check("network", variable, "ok", f"{variable}={value}")


def _rendezvous(environ: Mapping[str, str]) -> Iterator[Check]:
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        yield Check("network", "MASTER_PORT", "fail", f"MASTER_PORT={port!r} is not a port", "1024 to 65535")
        port = ""
    if not address:
        return
    found = _addresses(address)
    if not found:
        fix = "the first host's name as the other hosts resolve it; a fast network may have separate names"
        yield Check("network", "MASTER_ADDR", "fail", f"MASTER_ADDR={address} has no address", fix)
        return
    yield Check("network", "MASTER_ADDR", "ok", f"MASTER_ADDR={address} is {', '.join(found)}")
    # Only before ranks are started: within a job, rank 0 itself listens there.
    if port and not environ.get("RANK"):
        for one in found[:1]:
            if _taken(one, int(port)):
                what = f"port {port} of {address} is already in use"
                yield Check("network", "MASTER_PORT", "warn", what, "another MASTER_PORT, or end the job that uses it")


def _taken(address: str, port: int) -> bool:
    """Whether this host has something on a port; of other hosts nothing is asked."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
