"""Rewrite a pod's texts, instead of giving it a file system, a network namespace and a DNS of its own. Pure.

Containers are plain processes of the host. Therefore these are rewritten in the environment's values, the command and
the args of each container:

1. Paths: in a text that contains a `mountPath` of this container (the longest that fits, at path boundaries), it is
   replaced by the volume's folder on the host. Paths that a program builds by itself are not rewritten.
2. Names of a gang: `<hostname>.<subdomain>`, with or without `.<namespace>.svc.cluster.local`, becomes 127.0.0.1 if the
   subdomain is this pod's or a headless Service of its namespace. If `:<port>` follows and is a port of the Service,
   the port becomes the gang's port on the host.
3. Loopback ports: in `127.0.0.1:<port>` (also `localhost` and `0.0.0.0`), a `containerPort` that any container of the
   pod declares becomes the port on the host that was reserved for it, so that pods do not collide.
4. Environment variables whose name ends in PORT and whose whole value is such a port: a port of the pod's headless
   Service becomes the gang's port (the same for all its pods, and different for each gang), a port that the pod
   declares becomes the pod's.

A text is rewritten once: replacements are not rewritten again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LOOPBACK = "127.0.0.1"
_HOSTNAME = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"


@dataclass(frozen=True)
class Translation:
    """The replacements for one container."""

    mounts: Mapping[str, str] = field(default_factory=dict)  # mountPath -> folder on the host
    pod_ports: Mapping[int, int] = field(default_factory=dict)  # containerPort -> port on the host
    namespace: str = "default"
    services: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # headless service -> its port -> host's
    subdomain: str | None = None

    def text(self, text: str) -> str:
        """Apply rules 1 to 3 to a text."""
        return _rewrite(self, text)

    def path(self, path: str) -> str | None:
        """Return the host's folder for a path, None if no volume is mounted there."""
        mount = next((m for m in self.longest_first() if path == m or path.startswith(m + "/")), None)
        return None if mount is None else self.mounts[mount] + path[len(mount) :]

    def variable(self, name: str, value: str) -> str:
        """Return all four rules."""
        if name.endswith("PORT") and value.isdigit():
            return str(self.port(int(value)))
        return self.text(value)

    def port(self, port: int) -> int:
        """Return the host's port for a port of the gang or of the pod; itself if it is neither's."""
        gang = self.services.get(self.subdomain or "", {})
        return gang.get(port, self.pod_ports.get(port, port))

    def longest_first(self) -> list[str]:
        return sorted(self.mounts, key=len, reverse=True)


# A path must not begin in the middle of a path or of a URL's path, or after an expansion such as ${HOME}.
_PATH_START = r"(?:(?<=file://)|(?<![\w./~%+})$*?-]))"
_NAME_START = r"(?:(?<=//)|(?<![\w./-]))"
_END = r"(?![\w-])(?!\.\w)"


def _pattern(rules: Translation) -> re.Pattern[str]:
    alternatives = [r"(?<![\w.-])(?:127\.0\.0\.1|localhost|0\.0\.0\.0):(?P<loopback>\d{1,5})(?!\d)"]
    if rules.mounts:
        mounts = "|".join(re.escape(m) for m in rules.longest_first())
        alternatives.append(f"{_PATH_START}(?P<mount>{mounts}){_END}")
    names = {*rules.services, *([rules.subdomain] if rules.subdomain else [])}
    if names:
        services = "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))
        domain = rf"\.{re.escape(rules.namespace)}(?:\.svc(?:\.cluster\.local)?)?"
        member = rf"{_HOSTNAME}\.(?P<member>{services})(?:{domain})?"
        itself = rf"(?P<service>{services})\.{re.escape(rules.namespace)}\.svc(?:\.cluster\.local)?"
        alternatives.append(rf"{_NAME_START}(?:{itself}|{member})(?::(?P<port>\d{{1,5}}))?{_END}")
    return re.compile("|".join(alternatives))


def _rewrite(rules: Translation, text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        if "loopback" in groups:
            return f"{match.group(0).rpartition(':')[0]}:{rules.port(int(groups['loopback']))}"
        if "mount" in groups:
            return rules.mounts[groups["mount"]]
        if "port" not in groups:
            return LOOPBACK
        service, port = groups.get("service") or groups["member"], int(groups["port"])
        return f"{LOOPBACK}:{rules.services.get(service, {}).get(port, port)}"

    return _pattern(rules).sub(replacement, text)


_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: unknown names stay as they are, `$$` is a dollar."""

    def replacement(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return environment.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replacement, text)
