"""Which tasks a cluster has, where its engine or `sealane map generate` says it. What Ray says is in test_ray.py."""

import pickle
import subprocess
import sys
import sysconfig

import pytest
import sealane
import sealane.cluster
from daemons import ARENA_BYTES, PS, WORKER, binary


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setenv("SEALANE_BIN", binary())


def test_a_map_with_roles_is_a_cluster(own_daemon):
    own_daemon.map.write_text(f"# made by hand\n{PS} = h:7000  # ps 0\n{WORKER}=h:7000 # worker 0\nother:1=h:7000\n")
    cluster = sealane.cluster.from_map(own_daemon.map, socket=own_daemon.socket)
    cluster = pickle.loads(pickle.dumps(cluster))
    assert cluster.tasks == {"ps": (PS,), "worker": (WORKER,)}
    with cluster.attach("ps", 0, arena_bytes=ARENA_BYTES) as ps:
        assert ps.name == PS
    for role, index in [("ps", 1), ("ps", -1), ("chief", 0)]:
        with pytest.raises(sealane.InvalidArgument, match=f"there is no {role} {index}"):
            cluster.attach(role, index)


def test_engines_say_which_tasks_there_are(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster":{"ps":["a:2222"],"worker":["b:2222","b:2223"]},"task":{"type":"ps","index":0}}')
    assert sealane.cluster.from_tf_config().tasks == {"ps": ("a:2222",), "worker": ("b:2222", "b:2223")}
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    tasks = {"ps": ("node1:2222", "node1:2223"), "worker": ("node2:2222", "node2:2223")}
    assert sealane.cluster.from_slurm(ps=2).tasks == tasks
    pods = sealane.cluster.from_statefulset(ps="p:1", worker="w:1", service="s", namespace="n").tasks
    assert [pods[role][0].partition(".svc.")[0] for role in ("ps", "worker")] == ["p-0.s.n", "w-0.s.n"]
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(sealane.InvalidArgument, match="TF_CONFIG"):
        sealane.cluster.from_tf_config()


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'sealane\[ray\]'"):
        sealane.cluster.from_ray({"ps": 1})
    monkeypatch.delenv("SEALANE_BIN")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: f"/nowhere/{name}")
    with pytest.raises(FileNotFoundError, match="no program sealane in /nowhere/scripts .* .SEALANE_BIN"):
        sealane.cluster.from_tf_config()


def test_installed_program_is_found_without_path(monkeypatch):
    monkeypatch.delenv("SEALANE_BIN")
    monkeypatch.setenv("PATH", "")
    version = subprocess.run([sealane.cluster.program(), "--version"], capture_output=True, text=True, check=True).stdout
    assert version == f"sealane {sealane.__version__}\n"
