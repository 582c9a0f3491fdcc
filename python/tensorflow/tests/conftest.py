"""Jobs for the tests, and what their processes said, where a test has failed."""

import os
import pathlib

import pytest

# Before TensorFlow is loaded: by the tests, and by the process that theirs are forked from.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(pathlib.Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

from cluster import Job  # noqa: E402

# The end of each log that is shown.
SHOWN = 6000


def _make_jobs(tmp_path_factory, request):
    jobs = []

    def make(**options):
        jobs.append(Job(tmp_path_factory.mktemp("job"), **options))
        return jobs[-1]

    make.jobs = jobs
    yield make
    try:
        # What Sealane loses comes by gRPC a second later, so that a test passes all the same.
        unmet = [(node.name, count) for job in jobs for node in job.nodes if (count := node.unmet())]
    finally:
        for job in jobs:
            job.end()
    assert getattr(request.module, "MAY_BE_UNMET", False) or not unmet, unmet


# Makes jobs, which end with the test; and with the tests of a module.
make_job = pytest.fixture(_make_jobs, name="make_job")
make_module_job = pytest.fixture(_make_jobs, name="make_module_job", scope="module")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for fixture in ("make_job", "make_module_job"):
            for job in getattr(item.funcargs.get(fixture), "jobs", ()):
                for name, text in job.logs().items():
                    report.sections.append((name, text[-SHOWN:]))
    return report
