"""Which tasks a job has, and how its processes become them, on engines that place processes on hosts.

On Ray, the driver makes the cluster and hands it to the actors:

    cluster = sealane.cluster.from_ray({"ps": 2, "worker": 8})
    workers = [Worker.remote(cluster, index) for index in range(8)]

    # In each actor.
    task = cluster.attach("worker", index)
    table = sealane.ShardedTable("user", cluster.tasks["ps"], rows=1_000_000)

Where daemons run already, ``from_slurm``, ``from_tf_config`` and ``from_statefulset`` name the tasks that `sealane map generate`
finds, and ``from_map`` those of a file that it has written.
"""

import os
import pathlib
import shutil
import subprocess
import sysconfig

from . import _sealane
from ._errors import InvalidArgument

__all__ = ["Cluster", "from_map", "from_ray", "from_slurm", "from_statefulset", "from_tf_config", "program"]


class Cluster:
    """The tasks of a job. Processes may be given it, since it can be pickled."""

    def __init__(self, tasks, socket=None):
        self.tasks = {role: tuple(names) for role, names in tasks.items()}
        """The names of the tasks, in order, by their roles."""
        self._socket = socket

    def attach(self, role, index, **options):
        """Attaches this process as that task; ``options`` are those of ``sealane.attach``."""
        return _sealane.attach(self._name(role, index), socket=self._socket, **options)

    def _name(self, role, index):
        names = self.tasks.get(role, ())
        if not 0 <= index < len(names):
            raise InvalidArgument(f"there is no {role} {index}; the tasks are {self.tasks}")
        return names[index]


def from_ray(roles, **options):
    """The tasks of a job on Ray, so many of each role, as in ``{"ps": 2, "worker": 8}``; to be called by the driver.

    ``attach`` may then be called by actors, ray tasks and the driver. It starts a daemon on the node unless the cluster has one
    there, and returns when all tasks of the cluster have called it once: so create all actors before you wait for one. A process
    that Ray starts anew, there or on another node, calls it again, and the others' calls reach it: those that are under way when it
    goes end with ``Unavailable`` or at their timeouts, and are to be repeated. Daemons end with the job, or by ``close``.

    ``port`` is the daemons', which is free on all nodes; each has one of its own unless given. ``settings`` are daemons' as in
    ``{"runtime.shards": 2}``; without ``security`` among them, daemons share a secret of the job's own. ``program`` is the path of
    `sealane` on the nodes, by default $SEALANE_BIN, or else the one that was installed with this package.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ImportError("sealane.cluster.from_ray needs Ray: pip install 'sealane[ray]'") from error
    from ._ray import RayCluster

    return RayCluster(roles, **options)


def from_map(endpoint_map, *, socket=None):
    """The tasks of an endpoint map that `sealane map generate` has written, whose comments name their roles."""
    return _from_text(pathlib.Path(endpoint_map).read_text(), socket)


def from_slurm(*, ps=1, socket=None):
    """The tasks of a Slurm job, the first ``ps`` of which are parameter servers."""
    return _generated("slurm", socket, f"--ps={ps}")


def from_tf_config(*, socket=None):
    """The tasks of the variable ``TF_CONFIG``."""
    return _generated("tf-config", socket)


def from_statefulset(*, ps, worker, service, namespace=None, socket=None):
    """The pods of two StatefulSets with their replicas, as in ``ps="ps:1"``, of a headless ``service``."""
    flags = [f"--ps={ps}", f"--worker={worker}", f"--service={service}"]
    return _generated("statefulset", socket, *flags, *([f"--namespace={namespace}"] if namespace else []))


def program(path=None):
    """Returns the path of the program `sealane`: ``path``, $SEALANE_BIN, or the one that was installed with this package.

    The scripts of an environment that is not activated are not in $PATH. Raises ``FileNotFoundError`` if there is no program.
    """
    places = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    found = path or os.environ.get("SEALANE_BIN") or shutil.which("sealane", path=os.pathsep.join(places))
    if not found:
        raise FileNotFoundError(
            f"there is no program sealane in {places[0]} or $PATH; install the package again, or name the program in $SEALANE_BIN"
        )
    return found


def _generated(source, socket, *flags):
    done = subprocess.run([program(), "map", "generate", "--from", source, *flags], capture_output=True, text=True)
    if done.returncode != 0:
        raise InvalidArgument(done.stderr.strip())
    return _from_text(done.stdout, socket)


def _from_text(text, socket):
    tasks = {}
    for line in text.splitlines():
        entry, _, role = line.partition("#")
        if entry.strip() and role.strip():
            tasks.setdefault(role.split()[0], []).append(entry.partition("=")[0].strip())
    return Cluster(tasks, socket)
