"""The manifests in deploy/kubernetes: by Kubernetes' own schema, and by what their pods would run."""

import subprocess

import pytest
import sealane.cluster
from daemons import REPOSITORY, binary

kubernetes_validate = pytest.importorskip("kubernetes_validate")
# Which comes with the former.
yaml = pytest.importorskip("yaml")

FOLDER = REPOSITORY / "deploy/kubernetes"
# The oldest that has containers beside the task by default, and the newest that the schemas are known of.
RELEASES = ["1.29", kubernetes_validate.latest_version()]


def objects(path):
    for document in yaml.safe_load_all(path.read_text()):
        yield from document["items"] if document["kind"] == "List" else [document]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_are_what_kubernetes_takes(path, release):
    found = list(objects(path))
    for object in found:
        kubernetes_validate.validate(object, release, strict=True)
    assert found
    del found[-1]["spec"]["selector" if "selector" in found[-1]["spec"] else "template"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found[-1], release, strict=True)


def test_the_map_of_a_job_with_tables_has_its_pods(tmp_path):
    service, ps, worker = objects(FOLDER / "tables.yaml")
    pods = [object["spec"]["template"] for object in (ps, worker)]
    for pod in pods:
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert service["metadata"]["name"] == pod["spec"]["subdomain"]
        map, _, daemon = (container["command"] for container in pod["spec"]["initContainers"])
        here = [word.replace("/run/sealane", str(tmp_path)).replace("/usr/bin/sealane", binary()) for word in (*map, daemon[-1])]
        subprocess.run([*here[:-1], "--cluster-domain=cluster.local"], check=True)
        named = {"ps": ps["spec"]["replicas"], "worker": worker["spec"]["completions"]}
        named = {role: tuple(f"{role}-{i}.train.ml.svc.cluster.local:2222" for i in range(n)) for role, n in named.items()}
        assert sealane.cluster.from_map(tmp_path / "endpoint_map").tasks == named
        # The daemon understands its command line and that map, but not what this host is called.
        done = subprocess.run(["/bin/sh", "-c", here[-1].replace("$(hostname -f)", "none")], capture_output=True, text=True)
        assert f"task none:2222 is not in {tmp_path}/endpoint_map" in done.stderr, done.stderr
    assert worker["spec"]["parallelism"] == worker["spec"]["completions"]
