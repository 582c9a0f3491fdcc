"""`cargo xtask report`: runs every experiment, keeps what each wrote in `bench/results`, and writes of it `bench/REPORT.md`, its
pictures, and the figures of the README and the documentation. What was kept can be rendered again without measuring. To measure and to check takes
Python 3.11 alone; pictures are drawn by matplotlib, which is fetched where it is not."""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

import measure
import report

EXAMPLES = """examples:
  cargo xtask report
  cargo xtask report --peers
  cargo xtask report --only latency,ps_fusion
  cargo xtask report --check"""


def arguments():
    parser = argparse.ArgumentParser(prog="cargo xtask report", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", action="append", default=[],
                        help="measure only these experiments anew (repeatable, or with commas)")
    parser.add_argument("--lab", action="store_true", help="measure what needs the RDMA lab as well")
    parser.add_argument("--peers", action="store_true",
                        help="measure the other systems as well, and install them where they are missing (as root, on Debian)")
    parser.add_argument("--render", action="store_true", help="measure nothing: write what follows from what was kept anew")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page or a picture is not what the results say")
    parser.add_argument("--quick", action="store_true",
                        help="try everything as shortly as can be; what comes of it goes to target/report-quick, and means nothing")
    parser.add_argument("--program", type=Path, help="measure this program instead of building one")
    given = parser.parse_args()
    if (given.render or given.check) and (given.only or given.lab or given.peers or given.quick or given.render and given.check):
        parser.error("--render and --check measure nothing: give them alone")
    return given


def write(place):
    """Writes the pages, by a Python that has matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        python = measure.python_with("matplotlib")
        code = "import sys, pathlib, report; place = pathlib.Path(sys.argv[1]); report.write(place, report.load(place))"
        subprocess.run([python, "-c", code, place], cwd=Path(__file__).parent, check=True)
    else:
        report.write(place, report.load(place))


def main():
    given = arguments()
    if given.check:
        problems = report.check(report.ROOT, report.load(report.ROOT))
    elif given.render:
        write(report.ROOT)
        problems = []
    else:
        names = measure.chosen([name for names in given.only for name in names.split(",")], given.lab, given.peers)
        place = report.ROOT / "target/report-quick" if given.quick else report.ROOT
        program = given.program.resolve(strict=True) if given.program else measure.build()
        bench = measure.Bench(program, place / report.RESULTS, given.quick)
        problems = bench.run(names, report.load(report.ROOT))
        write(place)
        print(f"the report is in {place / 'bench/REPORT.md'}", file=sys.stderr)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


try:
    sys.exit(main())
except (OSError, measure.Failed) as problem:
    sys.exit(f"error: {problem}")
