"""`python3 -m unittest discover -s bench/report`: how figures are found, written and checked."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import aims
import chapters
import gains
import measure
import other_systems
import peers
import pictures
import report
from pages import Section, table
from results import Results, Run, Spread, brief, certain, is_cost, measured_at, median, quotient, with_spread

PROVENANCE = {"command": "sealane bench latency", "unix_seconds": 1_763_668_991, "took_s": 12.3, "commit": "0123abc",
              "compiler": "rustc 1.95.0", "congestion": "bbr", "memory_gib": 8.0, "load": 0.1}


def row(system, variant, metric, **figures):
    return {"system": system, "variant": variant, "metric": metric, **figures}


def ratio(name, of, median, low=None, high=None):
    return {"name": name, "of": of, "median": median, "min": low or median, "max": high or median}


SAMPLE = Run({
    "provenance": PROVENANCE,
    "machine": {"cpus": 2, "cpu_model": "Abacus 9", "kernel": "6.18", "pinned": [0, 1]},
    "results": [
        row("sealane", "a", "rtt_us", p50=8.0, p99=9.0),
        row("sealane", "a", "step_ms", value=2.0, min=1.0, max=4.0),
        row("sealane", "b", "step_ms", value=3.0, min=3.0, max=3.0),
        row("sealane", "c", "step_ms", value=3.0, min=3.0, max=3.0),
        row("raw", "a", "rtt_us", p50=6.4, p99=7.0),
    ],
    "ratios": [ratio("a/b", "step_ms", 0.5, 0.25, 1.0), ratio("c / a", "step_ms", 3.0, 2.0, 4.0),
               ratio("sealane/raw", "rtt_us.p50", 1.25)],
})


class Warnings(unittest.TestCase):
    def test_a_chapter_says_what_disturbed_its_runs(self):
        of = next(each for each in report.CHAPTERS if each["name"] == "tensors")
        busy = Run({**SAMPLE.report, "warnings": ["other programs used 0.8 CPUs", "the rounds differ by a factor of 3"]})
        said = [note for note in report.chapter(of, Results({"latency": busy, "rate": SAMPLE})).notes if "0.8 CPUs" in note]
        self.assertEqual(said, ["While latency was measured: other programs used 0.8 CPUs; the rounds differ by a factor of 3."])
        quiet = report.chapter(of, Results({"latency": SAMPLE})).notes
        self.assertFalse([note for note in quiet if "was measured:" in note])


class Figures(unittest.TestCase):
    def test_numbers_have_three_digits(self):
        shown = [brief(value) for value in (0, float("nan"), 1234.5, 12_345.0, 1_234_567.0, 8.125, 0.012345, 1e10)]
        self.assertEqual(shown, ["0", "0", "1230", "12.3 k", "1.23 M", "8.13", "0.0123", "10 G"])

    def test_a_unit_suits_its_figure(self):
        self.assertEqual(median("rtt_us.p50", certain(8.3)), "8.3 µs")
        self.assertEqual(with_spread("rtt_us", Spread(2000.0, 1000.0, 3000.0)), "2 ms (1 to 3)")
        self.assertEqual(median("rss_bytes_per_peer", certain(14_000.0)), "14 kB")
        self.assertEqual(median("tensors_per_s", certain(4.12e6)), "4.12 M/s")
        self.assertEqual(quotient(Spread(1.21, 1.18, 1.22)), "1.21 (1.18 to 1.22)")
        self.assertEqual((median("step_ms", None), quotient(None, "not measured")), ("", "not measured"))

    def test_less_is_better_of_costs_alone(self):
        costs = ["rtt_us.p50", "step_ms", "cpu_ms_per_step", "bytes_per_step", "steps_per_s", "slowest_share"]
        self.assertEqual([is_cost(metric) for metric in costs], [True, True, True, True, False, False])

    def test_they_are_found_by_name(self):
        self.assertEqual(SAMPLE.figure("sealane", None, "rtt_us.p99"), certain(9.0))
        self.assertEqual(SAMPLE.figure("sealane", None, "step_ms"), Spread(2.0, 1.0, 4.0))
        self.assertEqual(SAMPLE.figure("sealane", "b", "step_ms"), certain(3.0))
        self.assertIsNone(SAMPLE.figure("raw", None, "step_ms"))
        self.assertIsNone(SAMPLE.figure("sealane", None, "rtt_us.p42"))
        self.assertEqual(SAMPLE.variants("sealane"), ["a", "b", "c"])

    def test_variants_are_compared_with_the_first_whichever_way_round(self):
        found = [SAMPLE.to_first(variant, "step_ms") for variant in "abcd"]
        self.assertEqual(found, [certain(1.0), Spread(2.0, 1.0, 4.0), Spread(3.0, 2.0, 4.0), None])

    def test_what_all_variants_have_is_not_said(self):
        self.assertEqual(chapters.names(["fuse off, static", "fuse plan, static"]), ["fuse off", "fuse plan"])
        self.assertEqual(chapters.names(["static", "static, copied"]), ["as it is", "copied"])
        self.assertEqual(chapters.names(["one, two"]), ["one, two"])

    def test_a_row_says_how_fast_in_comparison(self):
        results = Results({"latency": SAMPLE})
        self.assertEqual(chapters.cells(results, chapters.TENSORS[0]), [chapters.TENSORS[0].what, "8 µs", "6.4 µs", "", "0.8", ""])
        self.assertEqual(chapters.cells(results, chapters.TENSORS[5])[1], "not measured")


    def test_grpc_is_the_better_of_calls_and_a_stream(self):
        rows = [row("sealane", "", "tensors_per_s", value=4e6), row("grpc", "unary", "tensors_per_s", value=2e5),
                row("grpc-stream", "stream", "tensors_per_s", value=2e6)]
        ratios = [ratio("sealane/grpc", "tensors_per_s", 20.0), ratio("sealane/grpc-stream", "tensors_per_s", 2.0)]
        results = Results({"rate": Run({"provenance": PROVENANCE, "results": rows, "ratios": ratios})})
        self.assertEqual(chapters.cells(results, chapters.TENSORS[3])[1:], ["4 M/s", "", "2 M/s, a stream", "", "2"])
        rows[2] = row("grpc-stream", "stream", "tensors_per_s", value=1e5)
        self.assertEqual(chapters.cells(results, chapters.TENSORS[3])[1:], ["4 M/s", "", "200 k/s", "", "20"])
        self.assertEqual(SAMPLE.best(("sealane", "raw"), "rtt_us.p50"), "raw")


class Peers(unittest.TestCase):
    def test_a_figure_is_read_from_what_a_peer_prints(self):
        self.assertEqual([peers.figure(text) for text in ("rtt_us 12.5\n", "per_second 3000000\n")], [12.5, 3e6])
        heads = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
        printed = heads + "10000,5.001,25.0,20.0,2.42,2.42,39579,40000\n"
        self.assertEqual(peers.of_perftest(printed, True), (10.002, 25_000))
        self.assertEqual(peers.of_perftest(printed, False), (40_000, 40_000))
        for wrong in ("", heads, "rtt_us", "per_second 0.0", "1,2,3\n", heads + "10,1,1,1,1,1,1,0\n"):
            with self.assertRaises(peers.Failed):
                peers.of_perftest(wrong, True)
            with self.assertRaises(peers.Failed):
                peers.figure(wrong)

    def test_a_pair_has_two_ends_and_says_why_it_fails(self):
        self.assertEqual(peers.pair(["sleep", 10], ["echo", "rtt_us 1"]), "rtt_us 1\n")
        with self.assertRaisesRegex(peers.Failed, "false failed"):
            peers.pair(["sleep", 10], ["false"])
        with self.assertRaisesRegex(peers.Failed, "does not listen: no such port"):
            peers.pair(["sh", "-c", "echo no such port >&2"], ["true"], peers.free_port())

    def test_systems_are_compared_round_by_round_where_they_were_in_all(self):
        contest = peers.Contest("tcp_rate", "tensors_per_s", 64, "rate", [])
        rounds = [{"sealane": 4.0, "a": 2.0, "b": 1.0}, {"sealane": 9.0, "a": 3.0}, {"sealane": 8.0, "a": 8.0}]
        results, ratios = peers.rows_of(contest, rounds)
        self.assertEqual([(row["system"], row["value"], row["min"], row["max"]) for row in results], [("sealane", 8.0, 4.0, 9.0), ("a", 3.0, 2.0, 8.0)])
        self.assertEqual(ratios, [ratio("sealane/a, tcp_rate", "tensors_per_s", 2.0, 1.0, 3.0)])

    def test_every_contest_is_shown_with_the_best_first(self):
        shown = [of[:2] for of in other_systems.CONTESTS]
        self.assertEqual([(of.name, of.metric) for of in peers.CONTESTS], shown)
        rows = [row("sealane", "tcp_latency", "rtt_us", value=10.0), row("grpc", "tcp_latency", "rtt_us", value=30.0),
                row("UCX", "tcp_latency", "rtt_us", value=5.0)]
        ratios = [ratio("sealane/grpc, tcp_latency", "rtt_us", 0.3333333), ratio("sealane/UCX, tcp_latency", "rtt_us", 2.0)]
        run = Run({"provenance": PROVENANCE, "results": rows, "ratios": ratios, "missing": {"gloo": "no torch"}})
        results, section = Results({"other_systems": run}), Section("", "")
        other_systems.answer(results, section)
        what = "64 B there and back over TCP, p50"
        self.assertIn(f"| {what} | UCX | 5 µs | 0.5 | UCX |\n|  | Sealane | 10 µs |  |  |\n|  | gRPC (tonic), unary | 30 µs | 3 | Sealane |", section.tables[0])
        self.assertEqual(section.notes, ["Not measured: gloo: no torch."])
        self.assertEqual(other_systems.ahead("UCX", Spread(1.1, 0.9, 1.2)), "level")
        self.assertIn(f"| {what} | 10 µs | UCX | 5 µs | 0.5 | UCX |", other_systems.leaders(results))
        self.assertTrue(other_systems.leaders(results).endswith("Measured with congestion control bbr; 2025-11-20, commit 0123abc."))

    def test_bare_socket_is_no_leading_system(self):
        rows = [row(system, "tcp_bandwidth", "gigabytes_per_s", value=value) for system, value in (("sealane", 3.0), ("raw", 5.0), ("UCX", 4.0))]
        leaders = other_systems.leaders(Results({"other_systems": Run({"provenance": PROVENANCE, "results": rows})}))
        self.assertIn("congestion control bbr | 3 GB/s | UCX | 4 GB/s |", leaders)

    def test_large_tensors_run_with_cubic_and_then_bbr(self):
        large = [of for of in peers.CONTESTS if of.name.startswith("tcp_bandwidth")]
        self.assertEqual([of.congestion for of in large], ["cubic", "bbr"])
        fuse = [of["bench"] for name, of in report.EXPERIMENTS.items() if name.startswith("fuse_large")]
        for lines in ([of.bench for of in large], fuse):
            self.assertEqual([re.search("--congestion (.*?) ", line)[1] for line in lines], ["cubic", "bbr"])
        # The contests are the only place of 4 MiB over TCP.
        others = [of["bench"] for of in report.EXPERIMENTS.values() if of.get("bench", "").startswith("bandwidth --size 4MiB")]
        self.assertEqual([line for line in others if "--security" not in line], [])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "network namespaces need root and iproute2")
    def test_peers_get_a_congestion_control_in_a_namespace(self):
        code = """
import peers, socket
def of_pair():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        with server.accept()[0] as accepted:
            return [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode() for one in (client, accepted)]
peers.enter_network()
peers.use_congestion()
print(*of_pair())
peers.use_congestion("reno")
print(*of_pair())
peers.use_congestion()
print(*of_pair())
"""
        done = subprocess.run([sys.executable, "-B", "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        self.assertEqual(done.stdout.splitlines(), [f"{default} {default}", "reno reno", f"{default} {default}"])


class Gains(unittest.TestCase):
    def test_speed_is_written_in_words(self):
        said = [gains.in_words(certain(by), "gRPC") for by in (2.376, 15.4, 0.91, 1.04, 0.97)]
        self.assertEqual(said, ["2.4x gRPC", "15x gRPC", "1.1x slower than gRPC", "level with gRPC", "level with gRPC"])
        self.assertEqual(gains.in_words(Spread(1.3, 0.9, 1.4), "gloo"), "level with gloo")

    def test_table_has_only_measured_rows(self):
        of = lambda ratios: Run({"provenance": PROVENANCE, "ratios": ratios})
        results = Results({
            "tensorflow": of([ratio("sealane-tcp/grpc", "pull_small_ms", 0.25), ratio("sealane/grpc", "pull_small_ms", 0.125)]),
            "torch_tcp": of([ratio("sealane/gloo, all_reduce 1024 KiB", "call_us", 0.5)]),
            "ps_grpc": of([ratio("sealane/grpc, async, one message, polling", "steps_per_s", 2.38)]),
        })
        self.assertEqual([row for row, _ in gains.rows(results)], [
            ["TensorFlow: a step that pulls 1,000 variables of 64 B from a ps", "4.0x gRPC over TCP, 8.0x gRPC on one host"],
            ["PyTorch: all_reduce of 1 MiB, 2 ranks", "2.0x gloo over TCP"],
            ["a step of 200 workers and 10 ps, sessions without engines; gRPC: tonic, one message per ps", "2.4x gRPC over TCP"],
        ])
        self.assertEqual(gains.in_brief(Results({})), "")
        self.assertTrue(gains.in_brief(results).endswith("|\n\nMeasured with congestion control bbr; 2025-11-20, commit 0123abc."))

    def test_ucx_line_names_contests_that_ucx_wins(self):
        rows, ratios = [], []
        for contest, metric, ours, tags, active in (("tcp_latency", "rtt_us", 11.0, 10.0, 12.0), ("shm_latency", "rtt_us", 1.0, 2.0, 3.0),
                                                    ("tcp_rate_batch", "tensors_per_s", 1.0, 9.0, 9.0),
                                                    ("tcp_bandwidth", "gigabytes_per_s", 3.0, 4.0, 6.0)):
            for system, value in (("sealane", ours), ("UCX, tags", tags), ("UCX, active messages", active)):
                system = system.replace("UCX", "UCX tcp")
                rows.append(row(system, contest, metric, value=value))
                ratios.append(ratio(f"sealane/{system}, {contest}", metric, ours / value))
        results = Results({"other_systems": Run({"provenance": PROVENANCE, "results": rows, "ratios": ratios})})
        self.assertEqual(gains.bare_ucx(results), "A bare loop of UCX is faster than Sealane: 1.1x at 64 B there and back between engines over TCP, "
                                                  "2.0x at 4 MiB between engines over TCP with bbr.")

    def test_bare_contests_exclude_a_shards_own_calls(self):
        self.assertLessEqual(set(gains.BARE), {name for name, _, _ in other_systems.CONTESTS})
        self.assertNotIn("tcp_rate_batch", gains.BARE)
        self.assertIn("an engine's own shard", next(what for name, _, what in other_systems.CONTESTS if name == "tcp_rate_batch"))

    def test_results_page_names_the_command_of_the_table(self):
        named = re.search("--only ([a-z_,]+)` measures what README's table shows", (report.ROOT / "docs/results.md").read_text())
        shown = {experiment for *_, settings in gains.GAINS for experiment, _ in settings.values()}
        self.assertEqual(set(named[1].split(",")), shown | {"other_systems"})
        self.assertEqual(measure.chosen(named[1].split(","), False), [name for name in report.EXPERIMENTS if name in shown | {"other_systems"}])

    def test_machines_of_a_table_have_a_sentence_each(self):
        machine = {"cpus": 2, "cpu_model": "Abacus 9", "kernel": "6.18"}
        run = lambda commit, **more: Run({"provenance": {**PROVENANCE, "commit": commit}, **more})
        runs = [run("1", machine=machine), run("2", machine={**machine, "cpu_model": "Abacus 8"}), run("1"), run("3")]
        self.assertEqual(measured_at(runs), "Measured on Abacus 9, 2 CPUs, Linux 6.18, with congestion control bbr; 2025-11-20, commit 1. "
                                            "Measured on Abacus 8, 2 CPUs, Linux 6.18, with congestion control bbr; 2025-11-20, commit 2. "
                                            "Measured with congestion control bbr; 2025-11-20, commit 3.")


class Pages(unittest.TestCase):
    def test_speeds_of_a_tensorflow_job_stand_beside_their_aims(self):
        rows, ratios = [], []
        for system, value in (("grpc", 40.0), ("sealane", 5.0), ("sealane-tcp", 10.0)):
            rows.append(row(system, "", "pull_small_ms", value=value))
            ratios.append(ratio(f"{system}/grpc", "pull_small_ms", value / 40.0))
        run = Run({"provenance": PROVENANCE, "results": rows, "ratios": ratios, "least_share": 0.995})
        section = Section("", "")
        chapters.tensorflow(Results({"tensorflow": run}), section)
        self.assertIn("| pull 1000 x 64 B | 40 ms | 5 ms | 8 | 10 | 10 ms | 4 | 6 |", section.tables[0])
        self.assertIn("| push 1000 x 64 B | not measured |  |  | 10 |  |  | 6 |", section.tables[0])
        self.assertEqual(section.notes, ["At least 99.50 % of the tensors' bytes went by Sealane."])

    def test_calls_of_pytorch_stand_in_both_settings(self):
        def run(call, ours, gloo):
            rows = [row("gloo", call, "call_us", value=gloo), row("sealane", call, "call_us", value=ours)]
            name = "sealane/gloo" if call == "all_reduce" else f"sealane/gloo, {call}"
            return Run({"provenance": PROVENANCE, "results": rows, "ratios": [ratio(name, "call_us", ours / gloo)]})

        section = Section("", "")
        chapters.pytorch(Results({"torch": run("barrier", 10.0, 40.0), "collectives": run("all_reduce", 20.0, 30.0)}), section)
        self.assertIn("| barrier | 40 µs | 10 µs | 4 |  |  |  |", section.tables[0])
        self.assertIn("| all_reduce of 1 MiB | 30 µs | 20 µs | 1.5 |", section.tables[1])

    def test_an_aim_is_reached_on_its_side_of_the_bound(self):
        rows = [row("ZeroMQ tcp, DEALER/ROUTER", "tcp_rate", "tensors_per_s", value=2.0), row("grpc-stream", "tcp_rate", "tensors_per_s", value=8.0)]
        ratios = [ratio(f"sealane/{name}, tcp_rate", "tensors_per_s", by) for name, by in (("ZeroMQ tcp, DEALER/ROUTER", 2.0), ("grpc-stream", 0.5))]
        results = Results({"other_systems": Run({"provenance": PROVENANCE, "results": rows, "ratios": ratios})})
        measured = aims.by_others("tcp_rate", "grpc-stream", "ZeroMQ tcp, DEALER/ROUTER")
        self.assertEqual(measured(results), Spread(0.5, 0.5, 0.5))
        self.assertEqual(aims.row(aims.Aim("it", measured, 0.5), results), ["it", "at least 0.5", "0.5", "yes"])
        self.assertEqual(aims.row(aims.Aim("it", measured, 0.6), results), ["it", "at least 0.6", "0.5", "no"])
        figure = lambda _: Spread(10.0, 9.0, 60.0)
        self.assertEqual(aims.row(aims.Aim("it", figure, at_most=50, metric="gap_ms"), results), ["it", "at most 50 ms", "10 ms", "yes"])
        self.assertEqual(aims.row(aims.Aim("it", lambda _: None, at_most=0), results), ["it", "at most 0", "not measured", ""])

    def test_a_table_means_itself(self):
        self.assertEqual(table(["<system", "GB/s"], [["a|b", "2"]]), "| system | GB/s |\n|---|---:|\n| a\\|b | 2 |\n")
        self.assertEqual(table(["<system"], []), "")

    def test_every_chapter_can_be_written_without_results(self):
        text, drawn = report.report(Results({}))
        self.assertIn(f"None of {len(report.EXPERIMENTS)} experiments has been measured yet.", text)
        self.assertEqual(drawn, {})
        self.assertEqual({of["name"] for of in report.CHAPTERS}, set(chapters.ANSWERS))
        self.assertEqual(len(report.EXPERIMENTS), sum(len(of["experiments"]) for of in report.CHAPTERS))

    def test_the_marks_of_a_page_are_filled_and_must_be_known(self):
        results = Results({"latency": SAMPLE})
        text = "<!-- figure latency_to_raw -->old<!-- end --> and <!-- figure restart_gap --><!-- end -->"
        made = "<!-- figure latency_to_raw -->1.25<!-- end --> and <!-- figure restart_gap -->(not measured)<!-- end -->"
        self.assertEqual(report.filled("page", text, results), made)
        for wrong in ("<!-- figure speed -->1<!-- end -->", "<!-- figure restart_gap -->1",
                      "<!-- figure restart_gap -->1 <!-- figure restart_gap -->1<!-- end -->",
                      "<!-- measured speed: made by `cargo xtask report` --><!-- end of measured -->"):
            with self.assertRaises(SystemExit, msg=wrong):
                report.filled("page", wrong, results)


    def test_rows_are_shown_once_they_were_measured_and_what_was_there_stays_until_then(self):
        page = "<!-- measured rows: made by `cargo xtask report` -->\n\nold\n\n<!-- end of measured -->"
        self.assertEqual(report.filled("page", page, Results({})), page)
        of = lambda system, metric, value: row(system, "", metric, value=value, min=value, max=value)
        rates = [of("sealane", "steps_per_s", 300.0), of("raw", "steps_per_s", 600.0), of("sealane", "bytes_per_step", 2e6)]
        run = Run({"provenance": PROVENANCE, "results": rates, "ratios": [ratio("sealane/raw", "steps_per_s", 0.5)]})
        whole = Run({"provenance": PROVENANCE, "results": [of("sealane", "steps_per_s", 90.0), of("whole", "steps_per_s", 3.0)],
                     "ratios": [ratio("sealane/whole", "steps_per_s", 30.0)]})
        results = Results({"rows_tcp": run, "rows_shm": run, "rows_ps": whole})
        self.assertIn("| 26 x 2048 rows of 64 B, TCP | 300/s | 600/s | 0.5 |", report.filled("page", page, results))
        section = Section("", "")
        chapters.rows(results, section)
        self.assertIn("| sealane | 2 MB |  |  |  |", section.tables[1])
        self.assertIn("| by rows | 90/s | 30 |\n| whole | 3/s | 1 |", section.tables[2])


class Files(unittest.TestCase):
    def setUp(self):
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.results = self.place / report.RESULTS
        self.results.mkdir(parents=True)

    def keep(self, name, text):
        (self.results / name).write_text(text)

    def test_a_changed_page_and_a_stray_picture_are_seen(self):
        results = Results({"latency": SAMPLE})
        texts, drawn = report.files(self.place, results)
        for path, text in texts.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        self.assertEqual(report.check(self.place, results), [])
        for path, text in texts.items():
            path.write_text(text.replace("8 µs", "7 µs", 1) if "8 µs" in text else text + "x")
            self.assertEqual(report.check(self.place, results), [f"{path} is not what the results say; run `cargo xtask report --render`"])
            path.write_text(text)
        self.keep("old.svg", "")
        self.assertIn("old.svg belongs to no chapter", report.check(self.place, results)[0])

    def test_a_picture_of_other_figures_is_old(self):
        drawn = {"a.svg": ("title", "machine", {"kind": "bars", "label": "x", "rows": [("one", Spread(1, 1, 1))]})}
        self.assertEqual(pictures.old(self.results, drawn), ["a.svg"])
        self.keep("a.svg", f"<svg>drawn from {pictures.digest(drawn['a.svg'])}</svg>")
        self.assertEqual(pictures.old(self.results, drawn), [])
        drawn["a.svg"][2]["rows"][0] = ("one", Spread(2, 1, 1))
        self.assertEqual(pictures.old(self.results, drawn), ["a.svg"])

    def test_what_is_no_result_is_refused(self):
        self.keep("notes.txt", "no result")
        self.keep("tensors.json", json.dumps({"latency": SAMPLE.report}))
        self.assertEqual(list(report.load(self.place).runs), ["latency"])
        for name, text, said in (("steps.json", '{"fuse_off": {}}', "fuse_off does not say where it comes from; measure it anew"),
                                 ("steps.json", "{", "steps.json: "),
                                 ("steps.json", '{"latency": {}}', "latency is no experiment whose result lies there"),
                                 ("strange.json", '{"strange": {}}', "strange is no experiment")):
            self.keep(name, text)
            with self.assertRaisesRegex(SystemExit, said):
                report.load(self.place)
            (self.results / name).unlink()

    def test_a_result_is_kept_with_where_it_comes_from(self):
        measure.keep(self.results, "latency", {"schema": "x"}, PROVENANCE)
        self.assertEqual(report.load(self.place).get("latency").provenance, PROVENANCE)
        measure.keep(self.results, "rate", {"schema": "x"}, {**PROVENANCE, "took_s": 1.0})
        measure.keep(self.results, "ps_grpc", {"schema": "x"}, PROVENANCE)
        self.assertEqual({path.name for path in self.results.iterdir()}, {"tensors.json", "ps_fusion.json"})
        kept = report.load(self.place)
        self.assertEqual([kept.get(name).provenance["took_s"] for name in ("latency", "rate", "ps_grpc")], [12.3, 1.0, 12.3])
        with self.assertRaisesRegex(measure.Failed, "no object"):
            measure.keep(self.results, "latency", [], PROVENANCE)

    def test_what_fails_is_named_and_spoils_nothing(self):
        run = lambda program, *names: measure.Bench(Path(program), self.results).run(names, Results({}), {})
        problems = run("/bin/false", "latency", "rate")
        self.assertEqual(len(problems), 2)
        self.assertTrue(problems[0].startswith("latency was not measured: /bin/false bench latency --size 64"), problems)
        # Does nothing, and writes nothing.
        self.assertIn("rate was not measured: what it wrote is no JSON", run("/bin/true", "rate")[0])
        self.assertEqual(list(self.results.iterdir()), [])

    def test_what_takes_the_place_of_the_file_is_read(self):
        program = self.place / "program"
        program.write_text('#!/bin/sh\nfor file; do :; done\necho \'{"schema": "x"}\' > "$file.new" && mv "$file.new" "$file"\n')
        program.chmod(0o755)
        with mock.patch.object(measure, "keep") as keep:
            self.assertEqual(measure.Bench(program, self.results).run(["rate"], Results({}), {}), [])
        self.assertEqual(keep.call_args.args[1:3], ("rate", {"schema": "x"}))

    def test_a_session_goes_first_by_its_group_and_not_without_one(self):
        group = self.place / "autogroup"
        self.assertFalse(measure.is_first(group))
        for shown, is_first in (("", False), ("/autogroup-61 nice 0\n", False), ("/autogroup-61 nice -5\n", True)):
            group.write_text(shown)
            self.assertEqual(measure.is_first(group), is_first, shown)

    def test_missing_python_is_named_with_its_install(self):
        needing = {name: measure.made_by_hand(of) for name, of in report.EXPERIMENTS.items() if measure.made_by_hand(of)}
        self.assertEqual(needing, {"tensorflow": "tensorflow", "torch": "torch", "torch_tcp": "torch", "collectives": "torch"})
        with mock.patch.object(measure, "ROOT", self.place):
            self.assertFalse(set(needing) & set(measure.chosen([], True)))
            problems = measure.Bench(Path("/bin/true"), self.results).run(["collectives", "torch"], Results({}), PROVENANCE)
            self.assertEqual([problem.split(" was not measured: ")[0] for problem in problems], ["collectives", "torch"])
            for problem in problems:
                self.assertRegex(problem, "there is no target/report-torch/bin/python; make it with .* `pip install 'torch==2.15")
            for folder, _ in measure.MADE_BY_HAND.values():
                (self.place / folder / "bin").mkdir(parents=True)
                (self.place / folder / "bin/python").touch()
            self.assertLessEqual(set(needing), set(measure.chosen([], False)))

    def test_torch_runs_by_its_python(self):
        line = lambda name: measure.Bench(Path("sealane"), self.results, quick=True).line(report.EXPERIMENTS[name])
        with mock.patch.object(measure, "python_of", lambda kind: Path(kind)):
            self.assertEqual(line("torch"), [Path("torch"), "python/torch/bench.py", "--ranks", "2", "--rounds", "1"])
            self.assertEqual(line("collectives")[:2], [Path("sealane"), "bench"])

    def test_experiments_are_chosen_by_name(self):
        self.assertEqual(measure.chosen(["rate", "latency"], False), ["latency", "rate"])
        self.assertNotIn("lab_write", measure.chosen([], False))
        self.assertIn("lab_write", measure.chosen([], True))
        self.assertNotIn("other_systems", measure.chosen([], True))
        self.assertIn("other_systems", measure.chosen([], with_peers=True))
        with self.assertRaisesRegex(SystemExit, "there is no experiment 'speed'; the experiments are ps_buffers_50, "):
            measure.chosen(["speed"], False)
        self.assertNotIn("growth", measure.chosen([], True))
        with self.assertRaisesRegex(SystemExit, "growth cannot be measured anew"):
            measure.chosen(["growth"], False)


if __name__ == "__main__":
    unittest.main()
