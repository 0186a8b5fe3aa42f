"""Where process 0 of several listens for the others."""

import ipaddress
import os
import socket

from absl import logging

from p2pjax.types import InputError


def bind_address(coordinator: str) -> str:
    """Where process 0 listens: at the address that was named, and at no other.

    JAX would listen on all interfaces, and crash where the port is taken. What the
    environment says of it (JAX_COORDINATOR_BIND_ADDRESS) comes first.

    Args:
      coordinator: host:port, as all processes were told.

    Raises:
      InputError: this machine has no such address, or the port is taken.
    """
    named = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", coordinator)
    host, _, port = named.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise InputError(
            f"Need an address of this machine for process 0, got {named} ({error}): "
            "name another --coordinator."
        ) from error
    # IPv4 first: localhost then is 127.0.0.1, whatever else it is.
    family, kind, protocol, _, place = min(found, key=lambda one: one[0])
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(place)
        except OSError as error:
            raise InputError(
                f"Need a free port of this machine for process 0, got {named} "
                f"({error.strerror}): choose another --coordinator, or say in "
                "JAX_COORDINATOR_BIND_ADDRESS where it is to listen."
            ) from error
    address = ipaddress.ip_address(place[0])
    if address.is_loopback and not _means_this_machine(host):
        logging.warning(
            "%s is %s on this machine: processes on other machines cannot join. Name "
            "an address in --coordinator that they can reach.",
            host,
            address,
        )
    return f"{f'[{address}]' if address.version == 6 else address}:{port}"


def _means_this_machine(host: str) -> bool:
    """Whether a name is for processes of one machine wherever it is read."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
